// The table of options: what it says is what the parser does, what a resumed run is refused for,
// and what the guide prints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "runtime/config/options_table.hpp"
#include "runtime/engine/run/directory.hpp"
#include "tests/config/config_test_support.hpp"
#include "tests/config/options_guide.hpp"
#include "tests/support/source_dir.hpp"

namespace spillway::config::options_test {
namespace {

using nlohmann::json;
using testing::IsEmpty;

/// One key with two values that differ, in a file where it counts.
struct Change {
  std::string_view path;
  std::string_view first;
  std::string_view second;
  std::string_view base = "{}";
  std::string_view named{};  ///< the key that a refusal names, if another
};

constexpr std::string_view kFp16 = R"({"fp16": {"enabled": true}})";
constexpr std::string_view kCuda = R"({"spillway": {"device": "cuda"}})";
constexpr std::string_view kNvme =
    R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/a"}}})";
constexpr std::string_view kStage3 = R"({"zero_optimization": {"stage": 3}})";
constexpr std::string_view kTensorGroup = R"({"tensor_parallel": {"autotp_size": 2}})";
constexpr std::string_view kInterleaved = R"({"spillway": {"pipeline_schedule": "interleaved"}})";
constexpr std::string_view kTwoStages =
    R"({"pipeline": {"stages": 2}, "gradient_accumulation_steps": 2})";
constexpr std::string_view kStale =
    R"({"pipeline": {"stages": 2}, "gradient_accumulation_steps": 2, "gradient_clipping": 0,
        "spillway": {"pipeline_schedule": "pipedream_2bw"}})";
constexpr std::string_view kDelayed = R"({"spillway": {"update": "delayed"}})";
constexpr std::string_view kSgd = R"({"optimizer": {"type": "SGD"}})";
constexpr std::string_view kAdam = R"({"optimizer": {"type": "Adam"}})";
constexpr std::string_view kWarmup = R"({"scheduler": {"type": "WarmupLR"}})";
constexpr std::string_view kWarmupDecay = R"({"scheduler": {"type": "WarmupDecayLR"}})";
constexpr std::string_view kWarmupCosine = R"({"scheduler": {"type": "WarmupCosineLR"}})";
constexpr std::string_view kLinear = R"({"scheduler": {"type": "Linear"}})";
constexpr std::string_view kWsd = R"({"scheduler": {"type": "WSD"}})";
constexpr std::string_view kRange = R"({"scheduler": {"type": "LRRangeTest"}})";
constexpr std::string_view kCycle =
    R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1, "cycle_max_lr": 2}}})";

const std::vector<Change> kChanges{
    {"train_batch_size", "4", "8", "{}", "train_micro_batch_size_per_gpu"},
    {"train_micro_batch_size_per_gpu", "1", "2"},
    {"gradient_accumulation_steps", "1", "2"},
    {"gradient_clipping", "1", "0.5"},
    {"fp16.enabled", "true", "false"},
    {"fp16.loss_scale", "0", "128", kFp16},
    {"fp16.initial_scale_power", "16", "12", kFp16},
    {"fp16.loss_scale_window", "1000", "50", kFp16},
    {"fp16.hysteresis", "2", "3", kFp16},
    {"fp16.consecutive_hysteresis", "false", "true", kFp16},
    {"fp16.min_loss_scale", "1", "2", kFp16},
    {"bf16.enabled", "false", "true"},
    {"bfloat16.enabled", "false", "true", "{}", "bf16.enabled"},
    {"optimizer.type", "\"AdamW\"", "\"Lion\""},
    {"optimizer.params.lr", "1e-3", "2e-3"},
    {"optimizer.params.weight_decay", "0", "0.1"},
    {"optimizer.params.betas", "[0.9, 0.999]", "[0.9, 0.95]"},
    {"optimizer.params.eps", "1e-8", "1e-7"},
    {"optimizer.params.bias_correction", "true", "false"},
    {"optimizer.params.adam_w_mode", "true", "false", kAdam, "optimizer.type"},
    {"optimizer.params.momentum", "0", "0.9", kSgd},
    {"scheduler.type", "\"Constant\"", "\"Linear\""},
    {"scheduler.params.warmup_num_steps", "1000", "10", kWarmup},
    {"scheduler.params.warmup_type", "\"log\"", "\"linear\"", kWarmup},
    {"scheduler.params.warmup_min_lr", "0", "1e-5", kWarmup},
    {"scheduler.params.warmup_max_lr", "0.001", "0.002", kWarmupDecay},
    {"scheduler.params.warmup_min_ratio", "0", "0.5", kWarmupCosine},
    {"scheduler.params.cos_min_ratio", "0.0001", "0.5", kWarmupCosine},
    {"scheduler.params.total_num_steps", "100", "200", kWarmupDecay},
    {"scheduler.params.last_batch_iteration", "-1", "5", kWarmup},
    {"scheduler.params.min_lr", "0", "1e-5", kLinear},
    {"scheduler.params.min_ratio", "0", "0.5", kLinear, "scheduler.params.min_lr"},
    {"scheduler.params.decay_num_steps", "10", "20", kWsd},
    {"scheduler.params.cycle_min_lr", "1", "1.5", kCycle},
    {"scheduler.params.cycle_max_lr", "2", "3", kCycle},
    {"scheduler.params.decay_lr_rate", "0", "0.5", kCycle},
    {"scheduler.params.cycle_first_step_size", "2000", "10", kCycle},
    {"scheduler.params.cycle_second_step_size", "2000", "10", kCycle},
    {"scheduler.params.cycle_first_stair_count", "0", "3", kCycle},
    {"scheduler.params.cycle_second_stair_count", "0", "3", kCycle},
    {"scheduler.params.decay_step_size", "0", "3", kCycle},
    {"scheduler.params.cycle_momentum", "true", "false", kCycle},
    {"scheduler.params.cycle_min_mom", "0.8", "0.7", kCycle},
    {"scheduler.params.cycle_max_mom", "0.9", "0.95", kCycle},
    {"scheduler.params.decay_mom_rate", "0", "0.01", kCycle},
    {"scheduler.params.lr_range_test_min_lr", "0.001", "0.002", kRange},
    {"scheduler.params.lr_range_test_step_size", "2000", "3", kRange},
    {"scheduler.params.lr_range_test_step_rate", "1", "2", kRange},
    {"scheduler.params.lr_range_test_staircase", "false", "true", kRange},
    {"zero_optimization.stage", "2", "3"},
    {"zero_optimization.zero_hpz_partition_size", "1", "4"},
    {"pipeline.stages", "1", "2"},
    {"tensor_parallel.autotp_size", "1", "2"},
    {"zero_optimization.cpu_offload", "false", "true"},
    {"zero_optimization.cpu_offload_param", "false", "true", kStage3},
    {"zero_optimization.offload_optimizer.device", "\"none\"", "\"cpu\""},
    {"zero_optimization.offload_optimizer.nvme_path", "\"/a\"", "\"/b\"", kNvme},
    {"zero_optimization.offload_param.device", "\"none\"", "\"cpu\"", kStage3},
    {"zero_optimization.offload_param.nvme_path", "\"/a\"", "\"/b\"", kStage3},
    {"activation_checkpointing.cpu_checkpointing", "false", "true"},
    {"tensorboard.enabled", "false", "true"},
    {"tensorboard.output_path", "\"/a\"", "\"/b\""},
    {"tensorboard.job_name", "\"a\"", "\"b\""},
    {"csv_monitor.enabled", "false", "true"},
    {"csv_monitor.output_path", "\"/a\"", "\"/b\""},
    {"csv_monitor.job_name", "\"a\"", "\"b\""},
    {"spillway.compute", "\"fp32\"", "\"bf16\""},
    {"spillway.device", "\"host\"", "\"cuda\""},
    {"spillway.deterministic", "true", "false", kCuda},
    {"spillway.tf32", "false", "true", kCuda},
    {"spillway.attention", "\"auto\"", "\"own\"", kCuda},
    {"spillway.context", "0", "64"},
    {"spillway.sum_order", "\"fast\"", "\"fixed\""},
    {"spillway.rounds", "1", "2", R"({"gradient_accumulation_steps": 4})"},
    {"spillway.tokens_per_step", "0", "100"},
    {"spillway.decay", "\"matrices\"", "\"all\""},
    {"spillway.state_format", "\"split\"", "\"int8\"", R"({"bf16": {"enabled": true}})"},
    {"spillway.order", "\"shuffled\"", "\"sequential\""},
    {"spillway.seed", "1234", "7"},
    {"spillway.tile_parameters", "4096", "8192"},
    {"spillway.operator_tile", "0", "100000"},
    {"spillway.delayed_from", "41", "5", kDelayed},
    {"spillway.compute_threads", "1", "2"},
    {"spillway.update", "\"auto\"", "\"deferred\""},
    {"spillway.pipeline_schedule", "\"1f1b\"", "\"pipedream_2bw\"", kTwoStages},
    {"spillway.pipeline_chunks", "1", "2", kInterleaved},
    {"spillway.pipeline_parts", "[2, 2]", "[1, 3]", kTwoStages},
    {"spillway.pipeline_meet_every", "1", "8", kStale},
    {"spillway.sequence_parallel", "false", "true", kTensorGroup},
    {"spillway.work_order", "\"layer_major\"", "\"micro_batch_major\""},
    {"spillway.checkpointing", "\"auto\"", "\"keep\""},
    {"spillway.residency", "\"auto\"", "\"none\""},
    {"spillway.prefetch", "1", "2"},
    {"spillway.device_memory", "\"1GiB\"", "\"2GiB\""},
    {"spillway.host_memory", "\"1GiB\"", "\"2GiB\""},
    {"spillway.nvme", "\"/a\"", "[\"/b\", \"/c\"]"},
    {"spillway.state_home", "\"auto\"", "\"host\""},
    {"spillway.activations", "\"auto\"", "\"nvme\""},
    {"spillway.gradient_sums", "\"auto\"", "\"host\""},
    {"spillway.io_engine", "\"auto\"", "\"posix\""},
    {"spillway.threads", "0", "1"},
    {"spillway.isa", "\"auto\"", "\"scalar\""},
    {"spillway.host_link_gbps", "1", "2"},
    {"spillway.disk_gbps", "1", "2"},
    {"spillway.timeout", "300", "600"},
    {"spillway.steps", "0", "5"},
    {"spillway.commit_every", "0", "5"},
    {"spillway.save_every", "0", "5"},
    {"spillway.keep", "2", "5"},
    {"spillway.eval_every", "0", "5"},
};

json::json_pointer pointer_of(std::string_view path) {
  std::string pointer = "/" + std::string(path);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return json::json_pointer(pointer);
}

engine::RunConfig with(const Change& change, std::string_view value) {
  json file = json::parse(change.base);
  file[pointer_of(change.path)] = json::parse(value);
  engine::RunConfig config;
  config.options = test::options_of(file.dump());
  return config;
}

TEST(OptionsTable, EveryKeyIsTriedBelow) {
  std::set<std::string> tried;
  for (const Change& change : kChanges) tried.emplace(change.path);
  EXPECT_EQ(tried.size(), kChanges.size());
  std::set<std::string> listed;
  for (const Option& option : options_table()) listed.insert(option.path());
  EXPECT_EQ(tried, listed);
  EXPECT_EQ(listed.size(), options_table().size());
}

TEST(OptionsTable, AKeyThatChangesIsRefusedByNameOrFree) {
  for (const Change& change : kChanges) {
    const engine::RunConfig before = with(change, change.first);
    const engine::RunConfig after = with(change, change.second);
    EXPECT_NO_THROW(engine::check_same_mathematics(before, with(change, change.first)))
        << change.path;
    const Option* const option = find_option(change.path);
    ASSERT_NE(option, nullptr) << change.path;
    const std::vector<std::string> differences = engine::differences_in_mathematics(before, after);
    if (option->part == Part::free) {
      EXPECT_THAT(differences, IsEmpty()) << change.path;
      continue;
    }
    const std::string_view named = change.named.empty() ? change.path : change.named;
    EXPECT_THAT(differences, testing::Contains(testing::StartsWith(std::string(named) + ": ")))
        << change.path;
    EXPECT_THROW(engine::check_same_mathematics(before, after), Error) << change.path;
  }
}

TEST(OptionsTable, APipelineMayChangeItsScheduleForOneOfTheSameMathematics) {
  const Change change{"spillway.pipeline_schedule", "\"1f1b\"", "\"f_then_b\"", kTwoStages};
  EXPECT_NO_THROW(
      engine::check_same_mathematics(with(change, change.first), with(change, change.second)));
}

std::string refusal(const TrainOptions& options) {
  try {
    validate(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(OptionsTable, StaleWeightsNeedSeveralStagesAndTheirNumberOfMicroBatches) {
  TrainOptions options;
  options.gradient_accumulation_steps = 4;
  options.pipeline.schedule = PipelineSchedule::pipedream_2bw;
  EXPECT_THAT(refusal(options), testing::HasSubstr("has stale weights"));
  options.pipeline.stages = 4;
  EXPECT_EQ(refusal(options), "");
  options.pipeline.stages = 5;
  EXPECT_THAT(refusal(options), testing::HasSubstr("of 5 stages needs at least 5"));
  options.pipeline.schedule = PipelineSchedule::pipedream;
  EXPECT_THAT(refusal(options), testing::HasSubstr("updates after each micro-batch"));
  options.gradient_accumulation_steps = 1;
  EXPECT_EQ(refusal(options), "");
}

TEST(OptionsTable, AnyKeyMaySayAutoAndIsReadOrRefused) {
  int refused = 0;
  for (const Change& change : kChanges) {
    json file = json::parse(change.base);
    file[pointer_of(change.path)] = "auto";
    try {
      static_cast<void>(parse_train_config(file.dump(), "test.json"));
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string(change.path) + " is \"auto\""));
      ++refused;
    }
  }
  EXPECT_THAT(refused, testing::AllOf(testing::Gt(10), testing::Lt(50)));
}

/// Several keys at once, most of them with a value that means something.
json drawn_file(std::mt19937_64& random) {
  const std::vector<json> odd{nullptr,
                              "auto",
                              "",
                              "x",
                              "a/b",
                              "..",
                              -1,
                              0,
                              1,
                              0.5,
                              1e300,
                              1e-310,
                              1ULL << 63,
                              true,
                              false,
                              json::array(),
                              json::object(),
                              {0.1},
                              {0.1, 0.1},
                              {0.1, 0.2},
                              {"a", 1},
                              {{"enabled", true}},
                              "512MiB",
                              "nvme"};
  json file = json::parse(kChanges[random() % kChanges.size()].base);
  for (std::uint64_t left = 1 + random() % 6; left > 0; --left) {
    const Change& change = kChanges[random() % kChanges.size()];
    const json value = random() % 4 == 0
                           ? odd[random() % odd.size()]
                           : json::parse(random() % 2 == 0 ? change.first : change.second);
    try {
      file[pointer_of(change.path)] = value;
    } catch (const json::exception&) {  // the section is already something else
    }
  }
  return file;
}

TEST(OptionsTable, AnyValuesAreReadAndWrittenBackOrRefused) {
  const char* const given = std::getenv("SPILLWAY_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  std::cout << "SPILLWAY_TEST_SEED=" << seed << '\n';
  std::mt19937_64 random(seed);
  int valid = 0;
  for (int i = 0; i < 800 && !testing::Test::HasFailure(); ++i) {
    const std::string text = drawn_file(random).dump();
    try {
      const TrainOptions options = test::options_of(text);
      validate(options);
      const std::string written = to_config_json(options);
      EXPECT_EQ(written, to_config_json(test::options_of(written))) << text;
      ++valid;
    } catch (const Error& error) {
      const bool expected =
          error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::not_supported;
      EXPECT_TRUE(expected) << text << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << text << error.what();
    }
  }
  EXPECT_GT(valid, 50);
}

TEST(OptionsTable, WhatIsSwitchedOffDoesNotCount) {
  const auto differences = [](std::string_view before, std::string_view after) {
    engine::RunConfig recorded;
    engine::RunConfig now;
    recorded.options = test::options_of(before);
    now.options = test::options_of(after);
    return engine::differences_in_mathematics(recorded, now);
  };
  EXPECT_THAT(differences("{}", R"({"fp16": {"enabled": false, "loss_scale_window": 7,
                                   "hysteresis": 9, "loss_scale": 128}})"),
              IsEmpty());
  EXPECT_THAT(differences(R"({"fp16": {"enabled": true, "loss_scale": 8}})",
                          R"({"fp16": {"enabled": true, "loss_scale": 8, "hysteresis": 9}})"),
              IsEmpty());
  EXPECT_THAT(differences(R"({"spillway": {"device": "cuda", "compute_threads": 1}})",
                          R"({"spillway": {"device": "cuda", "compute_threads": 2}})"),
              IsEmpty());
  EXPECT_THAT(differences(R"({"spillway": {"device": "host", "deterministic": true}})",
                          R"({"spillway": {"device": "host", "deterministic": false}})"),
              IsEmpty());
}

TEST(OptionsTable, TheDataAndTheModelAreComparedToo) {
  engine::RunConfig recorded;
  engine::RunConfig now;
  now.identity.fingerprint = 1;
  EXPECT_THAT(engine::differences_in_mathematics(recorded, now),
              testing::ElementsAre("the training tokens differ"));
  now = recorded;
  now.model.layers += 1;
  EXPECT_THROW(engine::check_same_mathematics(recorded, now), Error);
}

/// The value that a row claims, up to what it says about it: "0" of "0: none".
std::string claimed(const Option& option) {
  return std::string(option.standard.substr(0, option.standard.find_first_of(":;")));
}

TEST(OptionsTable, ClaimsTheDefaultsThatTheParserGives) {
  int compared = 0;
  for (const Change& change : kChanges) {
    const Option& option = *find_option(change.path);
    const json written = json::parse(to_config_json(test::options_of(change.base)));
    if (!written.contains(pointer_of(change.path))) continue;
    if (json::parse(change.base).contains(pointer_of(change.path))) continue;
    const json& value = written[pointer_of(change.path)];
    const json claim = json::parse(claimed(option), nullptr, false);
    if (!claim.is_discarded()) {
      EXPECT_EQ(value, claim) << change.path;
      ++compared;
    } else if (claimed(option).find(' ') == std::string::npos) {
      EXPECT_EQ(value, claimed(option)) << change.path;
      ++compared;
    }
  }
  EXPECT_GT(compared, 50);
}

TEST(OptionsTable, TheGuideIsPrintedFromIt) {
  std::ostringstream guide;
  guide << std::ifstream(test_support::source_dir() / "docs/configuration.md").rdbuf();
  EXPECT_EQ(guide.str(), test::options_guide()) << "print it with options_print";
}

}  // namespace
}  // namespace spillway::config::options_test
