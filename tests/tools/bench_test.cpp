// `spillway bench` from outside: small runs, their documents and their refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/tools/program.hpp"

namespace spillway::testing::bench_test {
namespace {

namespace fs = std::filesystem;

class Bench : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(::testing::TempDir()) / ("spillway_bench_" + std::to_string(::getpid()));
    fs::remove_all(directory_);  // of a process of this number that was killed
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  [[nodiscard]] Answer run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "bench");
    return Program(directory_, std::move(arguments)).wait();
  }

 protected:
  fs::path directory_;
};

TEST_F(Bench, AdamReportsEveryFormatAgainstItsTraffic) {
  const Answer answer = run({"adam", "--size", "1Mi", "--repetitions", "3", "--threads", "1,2",
                             "--prefetch", "0", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json document = answer.json();
  EXPECT_EQ(document["results"].size(), 8U);
  EXPECT_GT(document["fraction_of_limit"], 0.0);
  for (const auto& result : document["results"]) {
    EXPECT_EQ(result["parameters"], 1 << 20);
    EXPECT_TRUE(result["exact"]);
    EXPECT_GT(result["ns_per_parameter"], 0.0);
    EXPECT_NEAR(result["gb_per_s"].get<double>() * result["ns_per_parameter"].get<double>(),
                result["bytes_per_parameter"].get<double>(), 1e-6);
  }
  EXPECT_EQ(document["results"][0]["bytes_per_parameter"], 28.0);
}

// The times are those of a machine that does other things: tools/reproduce looks at them.
TEST_F(Bench, PipelineKeepsAndSimulatesWhatIsPublished) {
  const Answer answer = run({"pipeline", "--stages", "2", "--rounds", "4", "--forward-ms", "1",
                             "--backward-ms", "2", "--steps", "1", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json document = answer.json();
  EXPECT_EQ(document["results"].size(), 8U);
  EXPECT_EQ(document["wrong_activations"], 0);
  for (const auto& result : document["results"]) {
    // Where stages are never said to meet, ours do so for 1 % of the time.
    const double published = result["published_bubble"].get<double>();
    EXPECT_NEAR(result["simulated_bubble"].get<double>(), published, published > 0 ? 1e-9 : 0.01)
        << result["schedule"];
    EXPECT_GT(result["bubbles"][0].get<double>(), -1e-3);
  }
  EXPECT_EQ(run({"pipeline", "--stages", "4", "--rounds", "6"}).exit_code, 2);
}

TEST_F(Bench, CommComparesAllReducesByWhatTheySend) {
  const Answer answer =
      run({"comm", "--ranks", "4", "--size", "1MiB", "--repetitions", "2", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json document = answer.json();
  EXPECT_GT(document["fraction_of_limit"], 0.0);
  EXPECT_GT(document["copy_gb_per_s"], 0.0);
  std::map<std::string, nlohmann::json> results;
  for (const auto& result : document["results"]) results[result["operation"]] = result;
  EXPECT_EQ(results["all_reduce"]["sent_bytes"], 3 << 19);
  EXPECT_EQ(results["all_reduce.ring"]["sent_bytes"], 3 << 19);
  EXPECT_EQ(results["all_reduce.each_to_all"]["sent_bytes"], 3 << 20);
  EXPECT_EQ(results["all_reduce.master"]["sent_bytes"], 3 << 20);
  EXPECT_TRUE(results["all_reduce"]["exact"]);
  EXPECT_TRUE(results["all_reduce.master"]["exact"]);
  EXPECT_FALSE(results["all_reduce.ring"]["exact"]);
  EXPECT_FALSE(results["broadcast"].contains("exact"));
}

// The server of four ranks sends 1 MiB to each of three workers.
TEST_F(Bench, CommComparesParameterServersAndSaysWhichTrainOtherwise) {
  const Answer answer =
      run({"comm", "--ranks", "4", "--size", "1MiB", "--repetitions", "1", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  std::map<std::string, nlohmann::json> results;
  const nlohmann::json document = answer.json();
  for (const auto& result : document["results"]) results[result["operation"]] = result;
  for (const std::string mode : {"synchronous", "asynchronous", "geo"}) {
    const nlohmann::json& result = results["parameter_server." + mode];
    EXPECT_EQ(result["sent_bytes"], 3 << 20) << mode;
    EXPECT_GT(result["median_s"], 0.0) << mode;
    EXPECT_EQ(result.value("mathematics", ""), mode == "synchronous" ? "" : "other");
    EXPECT_EQ(result.contains("exact"), mode == "synchronous");
  }
  EXPECT_TRUE(results["parameter_server.synchronous"]["exact"]);
  EXPECT_FALSE(results["all_reduce.ring"].contains("mathematics"));
  const Answer table = run({"comm", "--ranks", "2", "--size", "64KiB", "--repetitions", "1"});
  EXPECT_NE(table.out.find("other mathematics"), std::string::npos) << table.out;
}

TEST_F(Bench, CommPrintsATableAndKnowsTheLimitOfALink) {
  // An all-reduce of 1 MiB moves 1 MiB each way for each of two ranks: 10.5 ms at 0.1 GB/s.
  const Answer answer = run({"comm", "--ranks", "2", "--size", "1MiB", "--repetitions", "1",
                             "--dtype", "bf16", "--link", "0.1"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_NE(answer.out.find("10.49 ms"), std::string::npos) << answer.out;
  EXPECT_EQ(run({"comm", "--backend", "single", "--link", "1"}).exit_code, 2);
  EXPECT_EQ(run({"comm", "--size", "1KiB"}).exit_code, 2);
}

TEST_F(Bench, AdamPrintsATableAndMeasuresDenormals) {
  const Answer answer = run({"adam", "--size", "64Ki", "--repetitions", "1", "--format", "fp32",
                             "--isa", "scalar", "--denormals"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_NE(answer.out.find("of limit"), std::string::npos);
  EXPECT_NE(answer.out.find("below the normal range"), std::string::npos);
}

TEST_F(Bench, AdamTakesSizesAndTilesInTurnAndSaysHowFarApartTheyAre) {
  const Answer answer = run({"adam", "--size", "64Ki,300000/80Ki", "--repetitions", "2", "--format",
                             "fp32,int8", "--prefetch", "0", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json document = answer.json();
  ASSERT_EQ(document["results"].size(), 4U);
  EXPECT_EQ(document["results"][0]["tile"], 0);
  EXPECT_EQ(document["results"][3]["parameters"], 300'000);
  EXPECT_EQ(document["results"][3]["tile"], 80 << 10);
  for (const auto& result : document["results"]) {
    EXPECT_TRUE(result["exact"]);
    EXPECT_TRUE(result["limit"]["skew"].is_null() || result["limit"]["skew"] >= 0);
    EXPECT_GT(result["limit"]["median_ns"], 0.0);
    EXPECT_GT(result["fraction_of_layout"], 0.0);
  }
  ASSERT_EQ(document["spread"].size(), 2U);
  EXPECT_EQ(document["spread"][1]["format"], "int8");
  EXPECT_GE(document["spread"][1]["ratio"], 1.0);
}

TEST_F(Bench, AdamNamesWhatItDoesNotKnow) {
  for (const auto& [flag, value] :
       {std::pair{"--format", "fp8"}, std::pair{"--isa", "sse9"}, std::pair{"--gradient", "int4"},
        std::pair{"--size", "4Kj"}, std::pair{"--size", "4Ki/x"}}) {
    const Answer answer = run({"adam", flag, value, "--repetitions", "1"});
    EXPECT_EQ(answer.exit_code, 2) << flag;
    EXPECT_NE(answer.err.find(value), std::string::npos) << answer.err;
  }
  EXPECT_EQ(run({"adam", "--format", "split", "--parameters", "fp16"}).exit_code, 2);
  EXPECT_EQ(run({}).exit_code, 2);
}

TEST_F(Bench, AdamSaysThatAPeerCannotBeRun) {
  const Answer answer = run({"adam", "--size", "4Ki", "--repetitions", "1", "--format", "fp32",
                             "--compare", "torch", "--python", "/nowhere/python"});
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_NE(answer.err.find("/nowhere/python"), std::string::npos);
}

constexpr const char* kTinyLlama = R"({
  "model_type": "llama", "vocab_size": 256, "max_position_embeddings": 32, "hidden_size": 64,
  "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "intermediate_size": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
  "tie_word_embeddings": false})";

TEST_F(Bench, StepReportsSpeedAndEveryTierAndLeavesNothingBehind) {
  write_all(directory_ / "model.json", kTinyLlama);
  fs::create_directories(directory_ / "scratch");
  fs::create_directories(directory_ / "disk");
  const Answer answer = run({"step",
                             "--model",
                             directory_ / "model.json",
                             "--layers",
                             "2",
                             "--context",
                             "32",
                             "--micro-batch",
                             "2",
                             "--tokens-per-step",
                             "200",
                             "--rounds",
                             "2",
                             "--steps",
                             "2",
                             "--device",
                             "host",
                             "--device-memory",
                             "1MiB",
                             "--nvme",
                             directory_ / "disk",
                             "--scratch",
                             directory_ / "scratch",
                             "--profile",
                             "",
                             "--threads",
                             "1",
                             "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json document = answer.json();
  EXPECT_EQ(document["layers"], 2);
  EXPECT_EQ(document["tokens_per_step"], 256);  // 2 rounds of 2 micro-batches of 2 x 32
  EXPECT_EQ(document["state_format"], "split");
  EXPECT_EQ(document["step_seconds"]["each"].size(), 2U);
  EXPECT_NEAR(document["tokens_per_second"].get<double>() *
                  document["step_seconds"]["median"].get<double>(),
              256, 1e-6);
  // One layer: 6 FLOPs a weight, 6 * context * width of causal attention; the head's 6 * 64 * 256.
  const double weights = 64 * (2 * 64 + 2 * 32 + 3 * 128);
  EXPECT_EQ(document["model_flops_per_token"], 2 * (6 * weights + 6 * 32 * 64) + 6 * 64 * 256);
  EXPECT_GT(document["mfu"], 0.0);
  for (const char* tier : {"device", "host"}) {
    EXPECT_EQ(document["memory"][tier]["high_water"], document["memory"][tier]["planned"]) << tier;
  }
  // The swap file's header and records come on top of what the plan counts.
  EXPECT_GE(document["memory"]["nvme"]["high_water"], document["memory"]["nvme"]["planned"]);
  EXPECT_EQ(document["placement"]["state_nvme"], document["placement"]["blocks"]);
  EXPECT_GT(document["bytes_moved"]["nvme_write"], document["bytes_moved"]["nvme_read"]);
  EXPECT_GT(document["bytes_moved"]["h2d"], 0);
  // Random weights know nothing: the loss is that of a guess, ln 256 = 5.545.
  EXPECT_NEAR(document["loss"]["first"].get<double>(), 5.545, 0.1);
  EXPECT_TRUE(fs::is_empty(directory_ / "scratch"));
  EXPECT_TRUE(fs::is_empty(directory_ / "disk"));
}

TEST_F(Bench, StepComparesItselfWithTheResidentModelAlone) {
  write_all(directory_ / "model.json", kTinyLlama);
  const Answer answer = run({"step", "--model", directory_ / "model.json", "--context", "32",
                             "--tokens-per-step", "64", "--steps", "2", "--limit", "--device",
                             "host", "--compute", "fp32", "--scratch", directory_});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_NE(answer.out.find("with the model resident and no optimizer"), std::string::npos);
  EXPECT_NE(answer.out.find("state format fp32"), std::string::npos);
}

TEST_F(Bench, StepRunsOnRanksThatAreThreads) {
  write_all(directory_ / "model.json", kTinyLlama);
  const auto step_at = [&](const char* stage) {
    const Answer answer = run({"step",      "--model",   directory_ / "model.json",
                               "--context", "32",        "--tokens-per-step",
                               "128",       "--steps",   "2",
                               "--compute", "fp32",      "--ranks",
                               "2",         "--stage",   stage,
                               "--link",    "0.02",      "--threads",
                               "1",         "--scratch", directory_,
                               "--json"});
    EXPECT_EQ(answer.exit_code, 0) << answer.err;
    return answer.json();
  };
  const nlohmann::json replicated = step_at("0");
  const nlohmann::json sharded = step_at("3");
  EXPECT_EQ(sharded["tokens_per_step"], 128);
  EXPECT_EQ(sharded["loss"], replicated["loss"]);
  // Of 2 P and 3 P bytes, each rank sends the half that it has (ZeRO, section 7); but the head is
  // gathered once for forward and backward.
  const auto sent = [](const nlohmann::json& d) { return d["bytes_moved"]["net"].get<double>(); };
  EXPECT_LT(sent(sharded), 1.5 * sent(replicated));
  EXPECT_GT(sent(sharded), 1.25 * sent(replicated));
  EXPECT_GE(sent(replicated), 4 * replicated["parameters"].get<double>());
  for (const nlohmann::json& d : {replicated, sharded}) {
    EXPECT_GT(d["step_seconds"]["median"].get<double>(), 0.9 * sent(d) / 0.02e9);
  }
}

TEST_F(Bench, StepRefusesWhatItCannotTrain) {
  const Answer unknown = run({"step", "--model", "llama-9-8b"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("llama-3-8b"), std::string::npos) << unknown.err;
  EXPECT_EQ(run({"step", "--compute", "fp8"}).exit_code, 2);
  EXPECT_EQ(run({"step", "--ranks", "0"}).exit_code, 2);
  EXPECT_EQ(run({"step", "--ranks", "2", "--stage", "4"}).exit_code, 2);
  EXPECT_EQ(run({"step", "--device-memory", "64KiB"}).exit_code, 3);
}

}  // namespace
}  // namespace spillway::testing::bench_test
