// The first promise: nothing but the mathematics changes a bit.
#include <gtest/gtest.h>

#include "runtime/config/keys.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::exactness_test {
namespace {

constexpr int kSteps = 6;

struct Variation {
  std::string name;
  std::function<void(config::TrainOptions&)> apply;
};

void PrintTo(const Variation& variation, std::ostream* out) { *out << variation.name; }

config::TrainOptions reference_options(DType compute, StateFormat format = StateFormat::fp32) {
  config::TrainOptions options = tiny_options();
  options.compute = compute;
  options.state_format = format;
  options.state_home = config::StateHome::device;
  return options;
}

/// Trained once a model, dtype and format: everything in device memory, activations kept.
const Outcome& reference(const model::ModelConfig& config, DType compute,
                         StateFormat format = StateFormat::fp32) {
  static std::map<std::tuple<model::Family, DType, StateFormat>, Outcome> cache;
  auto& outcome = cache[{config.family, compute, format}];
  if (outcome.losses.empty()) {
    TrainingHarness harness(config);
    outcome = harness.train(reference_options(compute, format), kSteps);
  }
  return outcome;
}

void streamed(config::TrainOptions& options) {
  options.state_home = config::StateHome::host;
  options.residency = config::Residency::none;
  options.checkpointing = config::Checkpointing::recompute;
  options.gradient_sums = config::SumsHome::host;
}

void add_activation_homes(std::vector<Variation>& list) {
  for (const config::StateHome away : {config::StateHome::host, config::StateHome::nvme}) {
    const std::string name = away == config::StateHome::host ? "host" : "nvme";
    list.push_back(
        {"activations_on_" + name, [=](config::TrainOptions& o) { o.activations = away; }});
    list.push_back({"all_streamed_and_activations_on_" + name, [=](config::TrainOptions& o) {
                      streamed(o);
                      o.state_home = config::StateHome::nvme;
                      o.activations = away;
                    }});
    list.push_back({"micro_batch_major_with_activations_on_" + name, [=](config::TrainOptions& o) {
                      streamed(o);
                      o.work_order = config::WorkOrder::micro_batch_major;
                      o.activations = away;
                    }});
  }
}

std::vector<Variation> variations() {
  const auto home = [](config::StateHome state) {
    return [state](config::TrainOptions& o) { o.state_home = state; };
  };
  std::vector<Variation> list{
      {"host", home(config::StateHome::host)},
      {"nvme", home(config::StateHome::nvme)},
      {"streamed", streamed},
      {"recomputed_on_device",
       [](config::TrainOptions& o) {
         o.state_home = config::StateHome::device;
         o.checkpointing = config::Checkpointing::recompute;
       }},
      {"streamed_from_nvme_by_posix",
       [=](config::TrainOptions& o) {
         streamed(o);
         o.state_home = config::StateHome::nvme;
         o.io_engine = nvme_swap::EngineKind::posix;
       }},
      {"resident_with_host_state",
       [](config::TrainOptions& o) {
         o.state_home = config::StateHome::host;
         o.residency = config::Residency::all;
       }},
      {"micro_batch_major",
       [=](config::TrainOptions& o) {
         streamed(o);
         o.work_order = config::WorkOrder::micro_batch_major;
       }},
      {"one_update_thread",
       [=](config::TrainOptions& o) {
         streamed(o);
         o.threads = 1;
       }},
      {"other_tiles",
       [=](config::TrainOptions& o) {
         o.state_home = config::StateHome::nvme;
         o.tile_parameters = 5 * kLeafParameters;
       }},
  };
  add_activation_homes(list);
  for (const config::StateHome state : {config::StateHome::host, config::StateHome::nvme}) {
    list.push_back(
        {"rounds_summed_on_device_with_state_on_" + std::string(config::config_name(state)),
         [=](config::TrainOptions& o) {
           streamed(o);
           o.state_home = state;
           o.gradient_sums = config::SumsHome::device;
         }});
  }
  for (const std::uint32_t prefetch : {0U, 2U, 5U}) {
    list.push_back({"prefetch_" + std::to_string(prefetch), [=](config::TrainOptions& o) {
                      streamed(o);
                      o.prefetch = prefetch;
                    }});
  }
  for (const cpu_adam::Isa isa : cpu_adam::isas()) {
    if (!cpu_adam::supported(isa)) continue;
    list.push_back({"isa_" + std::string(cpu_adam::name_of(isa)), [=](config::TrainOptions& o) {
                      o.state_home = config::StateHome::nvme;
                      o.isa = isa;
                    }});
  }
  return list;
}

class Exactness : public testing::TestWithParam<Variation> {};

TEST_P(Exactness, SameBitsAsDeviceOnlyForATiedHeadInFp32) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = reference_options(DType::fp32);
  GetParam().apply(options);
  EXPECT_EQ(harness.train(options, kSteps), reference(tiny_gpt2(), DType::fp32));
}

INSTANTIATE_TEST_SUITE_P(Placement, Exactness, testing::ValuesIn(variations()),
                         [](const auto& variation) { return variation.param.name; });

class FormatExactness : public testing::TestWithParam<std::tuple<Variation, StateFormat>> {};

TEST_P(FormatExactness, SameBitsAsDeviceOnlyForAnUntiedHeadInBf16) {
  const auto& [variation, format] = GetParam();
  TrainingHarness harness(tiny_llama());
  config::TrainOptions options = reference_options(DType::bf16, format);
  variation.apply(options);
  EXPECT_EQ(harness.train(options, kSteps), reference(tiny_llama(), DType::bf16, format));
}

INSTANTIATE_TEST_SUITE_P(Placement, FormatExactness,
                         testing::Combine(testing::ValuesIn(variations()),
                                          testing::Values(StateFormat::fp32, StateFormat::split,
                                                          StateFormat::bf16, StateFormat::int8)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" +
                                  std::string(name_of(std::get<1>(test.param)));
                         });

TEST(FormatExactness, SplitHasTheBitsOfFp32AndTheOthersHaveTheirOwn) {
  const auto outcome = [](StateFormat format) -> const Outcome& {
    return reference(tiny_llama(), DType::bf16, format);
  };
  EXPECT_EQ(outcome(StateFormat::split), outcome(StateFormat::fp32));
  for (const StateFormat format : {StateFormat::bf16, StateFormat::int8}) {
    EXPECT_NE(outcome(format).masters, outcome(StateFormat::fp32).masters);
    EXPECT_NEAR(outcome(format).losses.back(), outcome(StateFormat::fp32).losses.back(), 0.02);
  }
}

TEST(FormatExactness, EveryOptimizerGivesTheSameBitsFromDiskAndLearns) {
  using cpu_adam::Optimizer;
  TrainingHarness harness(tiny_llama());
  for (const auto& [optimizer, lr] :
       {std::pair(Optimizer::adagrad, 1e-2), {Optimizer::lion, 1e-3}, {Optimizer::sgd, 0.5}}) {
    config::TrainOptions options = reference_options(DType::bf16, StateFormat::split);
    options.adam.optimizer = optimizer;
    options.schedule.peak_lr = lr;
    const Outcome device = harness.train(options, 20);
    EXPECT_LT(device.losses.back(), device.losses.front() - 0.2) << static_cast<int>(optimizer);
    options.state_home = config::StateHome::nvme;
    options.residency = config::Residency::none;
    EXPECT_EQ(harness.train(options, 20), device) << static_cast<int>(optimizer);
  }
}

TEST(ExactnessOfOneRound, StreamedEqualsDeviceOnly) {
  config::TrainOptions options = reference_options(DType::fp16);
  options.rounds = 1;
  TrainingHarness harness(tiny_gpt2());
  const Outcome device = harness.train(options, kSteps);
  options.state_home = config::StateHome::nvme;
  options.residency = config::Residency::none;
  EXPECT_EQ(harness.train(options, kSteps), device);
}

TEST(Training, LossFallsAndMastersMove) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = tiny_options();
  options.state_home = config::StateHome::nvme;
  const Outcome outcome = harness.train(options, 60);
  // ln 67 = 4.2 at the start; four of five tokens follow from the one before.
  EXPECT_GT(outcome.losses.front(), 4.0);
  EXPECT_LT(outcome.losses.back(), 3.0);
}

/// Three steps under each set of options in turn, resumed in between.
Outcome train_in_turns(TrainingHarness& harness, std::span<const config::TrainOptions> turns) {
  const std::filesystem::path run = harness.new_run();
  Outcome outcome;
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    const auto trainer = harness.make(turns[turn], run, turn > 0);
    EXPECT_EQ(trainer->state().step, 3 * turn);
    harness.steps(*trainer, turns[turn], 3, outcome);
    trainer->cycle().commit();
    if (turn + 1 == turns.size()) harness.finish(*trainer, outcome);
  }
  return outcome;
}

TEST(Resume, ContinuesBitForBitUnderAnotherBudgetTierAndThreadCount) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions before = tiny_options();
  before.state_home = config::StateHome::nvme;
  before.residency = config::Residency::none;
  config::TrainOptions after = before;
  after.state_home = config::StateHome::host;
  after.residency = config::Residency::all;
  after.threads = 1;
  EXPECT_EQ(train_in_turns(harness, std::array{before, after}),
            reference(tiny_gpt2(), DType::fp32));
}

TEST(Resume, MovesEveryStateFormatBetweenAllTiers) {
  for (const StateFormat format : {StateFormat::split, StateFormat::bf16, StateFormat::int8}) {
    TrainingHarness harness(tiny_llama());
    std::vector<config::TrainOptions> turns;
    for (const config::StateHome home : {config::StateHome::nvme, config::StateHome::device,
                                         config::StateHome::host, config::StateHome::nvme}) {
      turns.push_back(reference_options(DType::bf16, format));
      turns.back().state_home = home;
    }
    const Outcome whole = harness.train(turns[1], 12);
    EXPECT_EQ(train_in_turns(harness, turns), whole) << name_of(format);
  }
}

class ResumeFrom : public testing::TestWithParam<config::StateHome> {};

TEST_P(ResumeFrom, LosesOnlyTheStepsAfterTheLastCommit) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = tiny_options();
  options.state_home = GetParam();
  const std::filesystem::path run = harness.new_run();
  Outcome outcome;
  {
    // Destroyed without a commit of its last step, as a killed process would be.
    const auto trainer = harness.make(options, run);
    harness.steps(*trainer, options, 4, outcome);
  }
  const auto trainer = harness.make(options, run, true);
  ASSERT_EQ(trainer->state().step, 3U);
  outcome.losses.resize(3);
  outcome.norms.resize(3);
  harness.steps(*trainer, options, 3, outcome);
  harness.finish(*trainer, outcome);
  EXPECT_EQ(outcome, reference(tiny_gpt2(), DType::fp32));
}

/// Three steps, a copy made while a fourth is taken, and three more from the copy.
Outcome go_on_from_a_copy(config::StateHome home, bool updated_before) {
  TrainingHarness harness(tiny_llama());
  config::TrainOptions options = reference_options(DType::bf16, StateFormat::split);
  options.state_home = home;
  options.commit_every = 100;  // the copy needs no commit of the run itself
  nvme_swap::StoreOptions copy;
  copy.directories = {harness.new_run()};
  copy.slots = 1;
  std::filesystem::create_directories(copy.directories.front());
  Outcome outcome, lost;
  {
    const auto trainer = harness.make(options, harness.new_run());
    harness.steps(*trainer, options, 3, outcome);
    if (updated_before) harness.finish(*trainer, lost);
    trainer->cycle().commits().copy_next(copy);
    EXPECT_TRUE(trainer->cycle().commits().copying());
    harness.steps(*trainer, options, 1, lost);
    EXPECT_FALSE(trainer->cycle().commits().copying());
  }
  const auto trainer = harness.make(options, harness.new_run());
  trainer->cycle().adopt(SavedState(shape_of(harness.config(), options), {copy}));
  EXPECT_EQ(trainer->state().step, 3U);
  harness.steps(*trainer, options, 3, outcome);
  harness.finish(*trainer, outcome);
  return outcome;
}

TEST_P(ResumeFrom, ACopyWrittenByTheNextStep) {
  EXPECT_EQ(go_on_from_a_copy(GetParam(), false),
            reference(tiny_llama(), DType::bf16, StateFormat::split));
}

TEST_P(ResumeFrom, ACopyOfWhatTheNextStepDoesNotWrite) {
  EXPECT_EQ(go_on_from_a_copy(GetParam(), true),
            reference(tiny_llama(), DType::bf16, StateFormat::split));
}

INSTANTIATE_TEST_SUITE_P(Tiers, ResumeFrom,
                         testing::Values(config::StateHome::nvme, config::StateHome::host,
                                         config::StateHome::device),
                         [](const auto& home) -> std::string {
                           if (home.param == config::StateHome::nvme) return "nvme";
                           return home.param == config::StateHome::host ? "host" : "device";
                         });

}  // namespace
}  // namespace spillway::engine::exactness_test
