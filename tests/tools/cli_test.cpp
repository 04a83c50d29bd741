// The program from outside: exit codes, documents on stdout, and a run's life with its accidents.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/environment.hpp"
#include "tests/tools/cli_fixture.hpp"

namespace spillway::testing::cli_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST_F(Cli, EveryCommandExplainsItself) {
  for (const char* command : {"data", "plan", "train", "eval", "generate", "export", "info"}) {
    const Answer answer = run({command, "--help"});
    EXPECT_EQ(answer.exit_code, 0) << command;
    EXPECT_NE(answer.out.find("--json"), std::string::npos) << command;
  }
}

TEST_F(Cli, WrongUsageIsExitCodeTwoAndNamesTheCause) {
  EXPECT_EQ(run({"train"}).exit_code, 2);
  EXPECT_EQ(run({"nonsense"}).exit_code, 2);
  EXPECT_EQ(run({"info", path("absent")}).exit_code, 2);
  write_all(path("train.json"), R"({"gradient_cliping": 1.0})");
  const Answer answer = run(train("run", 1));
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_NE(answer.err.find("gradient_clipping"), std::string::npos) << answer.err;
  EXPECT_EQ(answer.json()["error"]["exit"], 2);
}

TEST_F(Cli, WhatDoesNotFitIsExitCodeThree) {
  const Answer answer = run(train("run", 1, {"--device-memory", "64KiB"}));
  EXPECT_EQ(answer.exit_code, 3) << answer.err;
  EXPECT_NE(answer.err.find("What would make it fit"), std::string::npos) << answer.err;
}

TEST_F(Cli, AStepOfAbsurdSizeIsRefusedByName) {
  const Answer layers = run({"plan", path("train.json"), "--model", path("model.json"), "--layers",
                             std::to_string(16'384 + 1)});
  EXPECT_EQ(layers.exit_code, 2);
  EXPECT_NE(layers.err.find("16385 layers"), std::string::npos) << layers.err;
  // Two layers, the embedding and the head, forward and backward: 2 Mi passes are the most.
  write_all(path("train.json"), R"({"train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 262145, "spillway": {"context": 16}})");
  const Answer accumulation =
      run({"plan", path("train.json"), "--model", path("model.json"), "--json"});
  EXPECT_EQ(accumulation.exit_code, 2);
  EXPECT_NE(accumulation.err.find("gradient_accumulation_steps 262145"), std::string::npos)
      << accumulation.err;
}

TEST_F(Cli, AnEvaluationThatMemoryIsTooSmallForIsRefused) {
  ASSERT_EQ(run(train("run", 1)).exit_code, 0);
  const Answer answer =
      run({"eval", "--run", path("run"), "--data", path("data"), "--batch", "1000000000"});
  EXPECT_EQ(answer.exit_code, 3);
  EXPECT_NE(answer.err.find("does not fit: "), std::string::npos) << answer.err;
  EXPECT_NE(answer.err.find("eval: --batch"), std::string::npos) << answer.err;
}

TEST_F(Cli, ATeamThatTheEnvironmentLimitsIsRefused) {
  ::setenv("OMP_THREAD_LIMIT", "1", 1);
  const Answer answer = run(train("run", 1, {"--compute-threads", "2"}));
  ::unsetenv("OMP_THREAD_LIMIT");
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_NE(answer.err.find("OMP_THREAD_LIMIT"), std::string::npos) << answer.err;
}

/// What the OpenMP runtime says of its environment in the process that did the work: the last one,
/// where the program has started itself again.
std::string spins_shown(const Answer& answer) {
  const std::string name = "GOMP_SPINCOUNT = '";
  const std::size_t at = answer.err.rfind(name);
  if (at == std::string::npos) return "not shown: " + answer.err;
  const std::size_t first = at + name.size();
  return answer.err.substr(first, answer.err.find('\'', first) - first);
}

TEST_F(Cli, BoundsTheSpinningOfOpenMpUnlessTheUserHasChosen) {
  const test_support::Variable display("OMP_DISPLAY_ENV", "verbose");
  const auto shown = [this](const char* spins, const char* policy) {
    const test_support::Variable count("GOMP_SPINCOUNT", spins), wait("OMP_WAIT_POLICY", policy);
    const Answer answer = run({"--version"});
    EXPECT_EQ(answer.exit_code, 0);
    return spins_shown(answer);
  };
  EXPECT_EQ(shown(nullptr, nullptr), "1000");
  EXPECT_EQ(shown("77", nullptr), "77");
  EXPECT_GT(shown(nullptr, "active").size(), 6U);
  EXPECT_EQ(shown(nullptr, "passive"), "0");
}

TEST_F(Cli, PlanSaysWhatTrainingThenDoes) {
  const Answer plan = run({"plan", path("train.json"), "--model", path("model.json"),
                           "--device-memory", "2MiB", "--run", path("run"), "--json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const Answer trained = run(train("run", 5, {"--device-memory", "2MiB"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(trained.json()["device_high_water"], plan.json()["memory"]["device"]["bytes"]);
  EXPECT_EQ(trained.json()["plan"]["blocks"], plan.json()["blocks"]);
}

TEST_F(Cli, TrainsEvaluatesGeneratesAndExports) {
  const Answer trained = run(train("run", 60, {"--nvme", drive("disk")}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const json report = trained.json();
  EXPECT_LT(report["loss"], 3.0);
  EXPECT_GT(report["state_bytes_written"], 0);
  EXPECT_EQ(metrics("run").size(), 60U);

  const Answer of_run =
      run({"eval", "--run", path("run"), "--data", path("data"), "--batch", "4", "--json"});
  ASSERT_EQ(of_run.exit_code, 0) << of_run.err;
  EXPECT_EQ(of_run.json()["loss"], report["val_loss"]);

  ASSERT_EQ(run({"export", path("run"), path("hf")}).exit_code, 0);
  const Answer of_checkpoint =
      run({"eval", "--model", path("hf"), "--data", path("data"), "--batch", "4", "--json"});
  ASSERT_EQ(of_checkpoint.exit_code, 0) << of_checkpoint.err;
  EXPECT_EQ(of_checkpoint.json()["loss"], report["val_loss"]);

  const std::vector<std::string> generate{"generate", "--run", path("run"), "--prompt", "Bles",
                                          "--tokens", "20",    "--seed",    "5",        "--json"};
  const Answer first = run(generate);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.json()["tokens"].size(), 24U);
  EXPECT_EQ(first.out, run(generate).out);

  EXPECT_EQ(run({"info", path("run"), "--json"}).json()["step"], 60);
  EXPECT_EQ(run({"info", path("hf"), "--json"}).json()["kind"], "hf_checkpoint");
  EXPECT_EQ(run({"info", path("data"), "--json"}).json()["vocab_size"], 256);
}

TEST_F(Cli, AConfigurationWrittenForDeepSpeedTrainsAsItIs) {
  auto arguments = train("run", 4);
  arguments[1] = path("deepspeed.json");
  const Answer answer = run(arguments);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0]["scale"], 4096);
  EXPECT_LT(lines[3]["loss"], 6.0);
}

TEST_F(Cli, ACommittedRunIsNotOverwritten) {
  ASSERT_EQ(run(train("run", 2)).exit_code, 0);
  const std::string before = read_all(directory_ / "run/metrics.jsonl");
  const Answer answer = run(train("run", 2));
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_NE(answer.err.find("--resume"), std::string::npos) << answer.err;
  EXPECT_EQ(read_all(directory_ / "run/metrics.jsonl"), before);
}

TEST_F(Cli, ResumeUnderAnotherMathematicsIsRefusedByName) {
  ASSERT_EQ(run(train("run", 2)).exit_code, 0);
  const Answer answer = run(train("run", 4, {"--resume", "--seed", "99"}));
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_NE(answer.err.find("seed"), std::string::npos) << answer.err;
}

TEST_F(Cli, NumbersThatFitNothingAreRefusedBeforeARunIsMade) {
  const std::pair<const char*, const char*> cases[] = {{"--seed", "-1"},
                                                       {"--seed", "18446744073709551616"},
                                                       {"--steps", "4294967296"},
                                                       {"--threads", "-3"}};
  for (const auto& [flag, value] : cases) {
    std::vector<std::string> arguments = train("run", 2);
    const auto given = std::ranges::find(arguments, flag);
    if (given != arguments.end()) {
      *(given + 1) = value;
    } else {
      arguments.insert(arguments.end(), {flag, value});
    }
    const Answer answer = run(arguments);
    EXPECT_EQ(answer.exit_code, 2) << flag << ' ' << value;
    EXPECT_NE(answer.err.find(value), std::string::npos) << answer.err;
    EXPECT_FALSE(std::filesystem::exists(directory_ / "run")) << flag << ' ' << value;
  }
}

TEST_F(Cli, KeepsCheckpointsFromWhichANewRunGoesOnBitForBit) {
  std::string config = kConfig;
  config.replace(config.find("\"seed\""), 0, R"("save_every": 4, "keep": 2, )");
  write_all(path("train.json"), config);
  ASSERT_EQ(run(train("run", 2)).exit_code, 0);
  // What a process that was killed while it copied leaves behind.
  fs::create_directories(directory_ / "run/checkpoints/step-3/state");
  const Answer trained = run(train("run", 14, {"--resume"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(run({"info", path("run"), "--json"}).json()["kept_checkpoints"], json({8, 12}));
  EXPECT_FALSE(fs::exists(directory_ / "run/checkpoints/step-3"));
  EXPECT_FALSE(fs::exists(directory_ / "run/checkpoints/step-4"));
  fs::rename(directory_ / "run/checkpoints/step-8", directory_ / "moved");
  EXPECT_EQ(run({"info", path("moved"), "--json"}).json()["step"], 8);
  EXPECT_EQ(run({"eval", "--run", path("moved"), "--data", path("data")}).exit_code, 0);

  const auto from = [&](const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{
        "train", path("train.json"), "--from",  path("moved"), "--data", path("data"),
        "--run", path(name),         "--steps", "14",          "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const Answer forked = from("fork", {"--nvme", drive("fork_disk")});
  ASSERT_EQ(forked.exit_code, 0) << forked.err;
  auto expected = metrics("run");
  expected.erase(expected.begin(), expected.begin() + 8);
  EXPECT_EQ(metrics("fork"), expected);
  ASSERT_EQ(run({"export", path("run"), path("a")}).exit_code, 0);
  ASSERT_EQ(run({"export", path("fork"), path("b")}).exit_code, 0);
  EXPECT_EQ(read_all(directory_ / "a/model.safetensors"),
            read_all(directory_ / "b/model.safetensors"));

  const Answer noted = from("other", {"--seed", "99"});
  EXPECT_EQ(noted.exit_code, 0);
  EXPECT_NE(noted.err.find("seed: 3 in the run, 99 now"), std::string::npos) << noted.err;
  // The checkpoint itself is never trained on.
  const Answer refused = run(train("moved", 14, {"--resume"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("start a new run from it"), std::string::npos) << refused.err;
}

TEST_F(Cli, AnInterruptFinishesTheStepSavesAndExitsZero) {
  const Program program(directory_, train("run", 100000));
  ASSERT_TRUE(wait_for_lines(directory_ / "run/metrics.jsonl", 3)) << read_all(program.err());
  program.signal(SIGINT);
  const Answer answer = program.wait();
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_TRUE(answer.json()["interrupted"]);
  EXPECT_EQ(run({"info", path("run"), "--json"}).json()["step"], answer.json()["last_step"]);
}

TEST_F(Cli, ADamagedStateIsRefusedAndNotTrainedOn) {
  ASSERT_EQ(run(train("run", 3)).exit_code, 0);
  const fs::path swap = swap_file("run/state");
  ASSERT_TRUE(fs::exists(swap));
  std::string bytes = read_all(swap);
  // Flip one bit in every page: whatever slot is committed, its payload is hit.
  for (std::size_t at = 100; at < bytes.size(); at += 4096) bytes[at] ^= 1;
  write_all(swap, bytes);
  const Answer answer = run(train("run", 6, {"--resume"}));
  EXPECT_NE(answer.exit_code, 0);
  EXPECT_EQ(answer.json()["error"]["code"], "corrupt_data") << answer.err;

  fs::resize_file(swap, bytes.size() / 2);
  EXPECT_NE(run(train("run", 6, {"--resume"})).exit_code, 0);
}

TEST_F(Cli, ProfileOfMatrixProductsIsRefusedWithoutAGpuBeforeAnythingIsMeasured) {
  Answer answer = run({"profile", "--model", path("model.json"), "--device", "host", "--profile",
                       path("m.json"), "--json"});
  EXPECT_NE(answer.exit_code, 0);
  EXPECT_EQ(answer.json()["error"]["code"], "not_supported") << answer.err;
  answer = run({"profile", path("train.json"), "--profile", path("m.json"), "--json"});
  EXPECT_NE(answer.exit_code, 0);
  EXPECT_EQ(answer.json()["error"]["code"], "invalid_argument") << answer.err;
  EXPECT_FALSE(fs::exists(path("m.json")));
}

}  // namespace
}  // namespace spillway::testing::cli_test
