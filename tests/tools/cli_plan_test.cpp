// `spillway plan` for machines that are not here.
#include <gtest/gtest.h>

#include "tests/tools/cli_fixture.hpp"

namespace spillway::testing::cli_plan_test {
namespace {

TEST_F(Cli, PlanForAMachineThatIsNotHereMeasuresNothing) {
  write_all(path("large.json"), R"({
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 68,
    "bf16": {"enabled": true}, "spillway": {"context": 8192, "rounds": 68}})");
  const std::string h100 = std::string(SPILLWAY_SOURCE_DIR) + "/docs/machines/h100.json";
  std::vector<std::string> arguments{
      "plan", path("large.json"), "--model", "llama-3-8b",   "--machine",
      h100,   "--profile",        "",        "--no-commits", "--json"};
  const Answer answer = run(arguments);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json plan = answer.json();
  EXPECT_EQ(plan["tokens_per_step"], 557056);
  EXPECT_EQ(plan["parameters"], 8'030'261'248);
  EXPECT_EQ(plan["speed"]["basis"], "assumed");
  // golden/flops.json prints 5.147e10 FLOPs a token; the data sheet's peak is 989.4 TFLOP/s.
  const double rate = plan["speed"]["tokens_per_second"];
  EXPECT_NEAR(plan["speed"]["mfu"].get<double>() / (rate * 5.147e10 / 989.4e12), 1, 1e-4);
  EXPECT_LT(rate, plan["speed"]["resident_tokens_per_second"]);
  EXPECT_EQ(plan["memory"]["nvme"]["bytes"], 0);
  EXPECT_EQ(plan["memory"]["device"]["budget"], 79'000'000'000);

  EXPECT_EQ(answer.err.find("deterministic"), std::string::npos) << answer.err;

  // An older description, which does not say what the deterministic backward pass costs.
  nlohmann::json older = nlohmann::json::parse(read_all(h100));
  older["attention_backward_tflops"] = 1.4 * 320;
  older.erase("attention_backward_deterministic_tflops");
  write_all(path("older.json"), older.dump());
  arguments[5] = path("older.json");
  const Answer guessed = run(arguments);
  EXPECT_NE(guessed.err.find("taken to be 1.4 times slower"), std::string::npos) << guessed.err;
  EXPECT_NEAR(guessed.json()["speed"]["tokens_per_second"].get<double>() / rate, 1, 1e-9);

  arguments.insert(arguments.end(), {"--device-memory", "2GB"});
  EXPECT_EQ(run(arguments).exit_code, 3);
}

// Of 8 ranks on a machine, each has an eighth of the state and of the machine's memory.
TEST_F(Cli, PlanForOneOfManyRanks) {
  write_all(path("stage3.json"), R"({
    "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3}, "spillway": {"context": 4096, "state_home": "host"}})");
  const std::string node = std::string(SPILLWAY_SOURCE_DIR) + "/docs/machines/dgx-h100.json";
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"plan",       path("stage3.json"), "--model",
                                       "llama-3-8b", "--profile",         "",
                                       "--json",     "--check",           "--no-commits"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const nlohmann::json one = plan({"--machine", node}).json();
  const Answer answer = plan({"--machine", node, "--ranks", "8"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json eighth = answer.json();
  EXPECT_EQ(eighth["ranks"], 8);
  EXPECT_EQ(eighth["tokens_per_step"], 8 * 4096);
  const auto bytes = [](const nlohmann::json& document, const char* what) {
    return document["memory"]["host"]["items"][what].get<double>();
  };
  // Padding: at most a leaf for each rank and block, 34 * 8 * 4096 of 8.03e9 parameters.
  for (const char* what : {"optimizer state", "parameters", "waiting gradients"}) {
    EXPECT_NEAR(bytes(eighth, what) * 8 / bytes(one, what), 1, 1.4e-4) << what;
  }
  EXPECT_EQ(eighth["memory"]["host"]["budget"], 1'900'000'000'000 / 8);
  EXPECT_GT(eighth["lanes"]["net"]["busy_seconds"], 0);
  EXPECT_EQ(one["lanes"]["net"]["busy_seconds"], 0);
  // Between machines the network is slower.
  const nlohmann::json apart = plan({"--machine", node, "--ranks", "8", "--nodes", "8"}).json();
  EXPECT_NEAR(apart["lanes"]["net"]["busy_seconds"].get<double>() /
                  eighth["lanes"]["net"]["busy_seconds"].get<double>(),
              340.0 / 45, 0.5);
  EXPECT_GT(apart["gathered_ahead"], eighth["gathered_ahead"]);

  const Answer unmeasured = plan({"--ranks", "2"});
  EXPECT_EQ(unmeasured.exit_code, 2);
  EXPECT_NE(unmeasured.err.find("--machine"), std::string::npos) << unmeasured.err;
  const Answer crowded = plan({"--machine", node, "--ranks", "16"});
  EXPECT_EQ(crowded.exit_code, 2);
  EXPECT_NE(crowded.err.find("8 GPU(s)"), std::string::npos) << crowded.err;
  EXPECT_EQ(plan({"--machine", node, "--ranks", "0"}).exit_code, 2);
  EXPECT_EQ(plan({"--machine", node, "--nodes", "0"}).exit_code, 2);
  const Answer uneven = plan({"--machine", node, "--ranks", "8", "--nodes", "3"});
  EXPECT_EQ(uneven.exit_code, 2);
}

// 8 ranks are 4 stages of 2 replicas, and a stage has about a quarter of the layers.
TEST_F(Cli, PlanForTheLongestStageOfAPipeline) {
  write_all(path("pipeline.json"), R"({
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16,
    "bf16": {"enabled": true}, "pipeline": {"stages": 4}, "spillway": {"context": 4096}})");
  const std::string node = std::string(SPILLWAY_SOURCE_DIR) + "/docs/machines/dgx-h100.json";
  const auto plan = [&](const char* ranks) {
    return run({"plan", path("pipeline.json"), "--model", "llama-3-8b", "--profile", "",
                "--machine", node, "--ranks", ranks, "--json"});
  };
  const Answer answer = plan("8");
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json longest = answer.json();
  EXPECT_EQ(longest["ranks"], 2);
  EXPECT_EQ(longest["tokens_per_step"], 2 * 16 * 4096);
  EXPECT_EQ(longest["stage"]["count"], 4);
  const auto& layers = longest["stage"]["layers"];
  ASSERT_EQ(layers.size(), 1U);
  EXPECT_NEAR(layers[0][1].get<double>() - layers[0][0].get<double>() + 1, 34 / 4.0, 1.5);
  for (const char* stage : {"stage 0 of 4: layers 0 to", "stage 3 of 4: layers"}) {
    EXPECT_NE(answer.err.find(stage), std::string::npos) << answer.err;
  }
  const Answer uneven = plan("6");
  EXPECT_EQ(uneven.exit_code, 2);
  EXPECT_NE(uneven.err.find("pipeline.stages is 4"), std::string::npos) << uneven.err;
}

TEST_F(Cli, PlanSaysHowManyBlocksKeepTheirActivationsOnTheHost) {
  write_all(path("kept.json"), R"({
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16,
    "bf16": {"enabled": true}, "spillway": {"context": 8192, "checkpointing": "offload"}})");
  const std::string h100 = std::string(SPILLWAY_SOURCE_DIR) + "/docs/machines/h100.json";
  std::vector<std::string> arguments{"plan",
                                     path("kept.json"),
                                     "--model",
                                     "llama-3-8b",
                                     "--machine",
                                     h100,
                                     "--profile",
                                     "",
                                     "--device-memory",
                                     "200GB",
                                     "--host-memory",
                                     "900GB",
                                     "--no-commits"};
  const Answer text = run(arguments);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  arguments.emplace_back("--json");
  const Answer answer = run(arguments);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json plan = answer.json();
  int away = 0;
  for (const nlohmann::json& block : plan["blocks"]) {
    EXPECT_EQ(block["keep"], true);
    away += block["offload"] == true ? 1 : 0;
  }
  // Some of the 32 layers' activations fit on the device, and not all.
  EXPECT_GT(away, 0);
  EXPECT_LT(away, 32);
  EXPECT_GT(plan["memory"]["host"]["items"]["kept activations"], 0);
  EXPECT_GT(plan["memory"]["device"]["items"]["kept activations"], 0);
  EXPECT_NE(text.out.find(std::to_string(away) + " of them on the host"), std::string::npos)
      << text.out;
  // The layers are cut in two ways, and each line says why another cut is none of them.
  int layers = 0, on_host = 0;
  for (const nlohmann::json& cut : plan["cuts"]) {
    const int blocks = cut["kind"] == "layers" ? cut["blocks"].get<int>() : 0;
    layers += blocks;
    on_host += cut["saved"] == "host" ? blocks : 0;
    ASSERT_TRUE(cut.contains("next_best")) << cut;
    EXPECT_TRUE(cut["next_best"].contains("lacks") || cut["next_best"].contains("step_seconds"));
  }
  EXPECT_EQ(layers, 32);
  EXPECT_EQ(on_host, away);
  EXPECT_NE(text.out.find("saved host, output device"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("next best, "), std::string::npos) << text.out;
}

}  // namespace
}  // namespace spillway::testing::cli_plan_test
