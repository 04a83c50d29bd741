// The first promise: nothing but the mathematics changes a bit.
#include <gtest/gtest.h>

#include "tests/engine/training_harness.hpp"

namespace spillway::engine {
namespace {

constexpr int kSteps = 6;

struct Variation {
  std::string name;
  std::function<void(TrainOptions&)> apply;
};

void PrintTo(const Variation& variation, std::ostream* out) { *out << variation.name; }

TrainOptions reference_options(DType compute) {
  TrainOptions options = tiny_options();
  options.compute = compute;
  options.state_home = StateHome::device;
  return options;
}

/// Trained once a model and dtype: everything in device memory, activations kept.
const Outcome& reference(const model::ModelConfig& config, DType compute) {
  static std::map<std::pair<model::Family, DType>, Outcome> cache;
  auto& outcome = cache[{config.family, compute}];
  if (outcome.losses.empty()) {
    TrainingHarness harness(config);
    outcome = harness.train(reference_options(compute), kSteps);
  }
  return outcome;
}

std::vector<Variation> variations() {
  const auto home = [](StateHome state) {
    return [state](TrainOptions& o) { o.state_home = state; };
  };
  const auto streamed = [](TrainOptions& o) {
    o.state_home = StateHome::host;
    o.residency = Residency::none;
    o.checkpointing = Checkpointing::recompute;
  };
  std::vector<Variation> list{
      {"host", home(StateHome::host)},
      {"nvme", home(StateHome::nvme)},
      {"streamed", streamed},
      {"recomputed_on_device",
       [](TrainOptions& o) {
         o.state_home = StateHome::device;
         o.checkpointing = Checkpointing::recompute;
       }},
      {"streamed_from_nvme_by_posix",
       [=](TrainOptions& o) {
         streamed(o);
         o.state_home = StateHome::nvme;
         o.io_engine = nvme_swap::EngineKind::posix;
       }},
      {"resident_with_host_state",
       [](TrainOptions& o) {
         o.state_home = StateHome::host;
         o.residency = Residency::all;
       }},
      {"micro_batch_major",
       [=](TrainOptions& o) {
         streamed(o);
         o.work_order = WorkOrder::micro_batch_major;
       }},
      {"one_update_thread",
       [=](TrainOptions& o) {
         streamed(o);
         o.threads = 1;
       }},
      {"other_tiles",
       [=](TrainOptions& o) {
         o.state_home = StateHome::nvme;
         o.tile_parameters = 5 * kLeafParameters;
       }},
  };
  for (const std::uint32_t prefetch : {0U, 2U, 5U}) {
    list.push_back({"prefetch_" + std::to_string(prefetch), [=](TrainOptions& o) {
                      streamed(o);
                      o.prefetch = prefetch;
                    }});
  }
  for (const cpu_adam::Isa isa :
       {cpu_adam::Isa::scalar, cpu_adam::Isa::avx2, cpu_adam::Isa::avx512}) {
    if (!cpu_adam::supported(isa)) continue;
    list.push_back({"isa_" + std::string(cpu_adam::name_of(isa)), [=](TrainOptions& o) {
                      o.state_home = StateHome::nvme;
                      o.isa = isa;
                    }});
  }
  return list;
}

class Exactness : public testing::TestWithParam<Variation> {};

TEST_P(Exactness, SameBitsAsDeviceOnlyForATiedHeadInFp32) {
  TrainingHarness harness(tiny_gpt2());
  TrainOptions options = reference_options(DType::fp32);
  GetParam().apply(options);
  EXPECT_EQ(harness.train(options, kSteps), reference(tiny_gpt2(), DType::fp32));
}

TEST_P(Exactness, SameBitsAsDeviceOnlyForAnUntiedHeadInBf16) {
  TrainingHarness harness(tiny_llama());
  TrainOptions options = reference_options(DType::bf16);
  GetParam().apply(options);
  EXPECT_EQ(harness.train(options, kSteps), reference(tiny_llama(), DType::bf16));
}

INSTANTIATE_TEST_SUITE_P(Placement, Exactness, testing::ValuesIn(variations()),
                         [](const auto& variation) { return variation.param.name; });

TEST(ExactnessOfOneRound, StreamedEqualsDeviceOnly) {
  TrainOptions options = reference_options(DType::fp16);
  options.rounds = 1;
  TrainingHarness harness(tiny_gpt2());
  const Outcome device = harness.train(options, kSteps);
  options.state_home = StateHome::nvme;
  options.residency = Residency::none;
  EXPECT_EQ(harness.train(options, kSteps), device);
}

TEST(Training, LossFallsAndMastersMove) {
  TrainingHarness harness(tiny_gpt2());
  TrainOptions options = tiny_options();
  options.state_home = StateHome::nvme;
  const Outcome outcome = harness.train(options, 60);
  // ln 67 = 4.2 at the start; four of five tokens follow from the one before.
  EXPECT_GT(outcome.losses.front(), 4.0);
  EXPECT_LT(outcome.losses.back(), 3.0);
}

TEST(Resume, ContinuesBitForBitUnderAnotherBudgetTierAndThreadCount) {
  TrainingHarness harness(tiny_gpt2());
  TrainOptions before = tiny_options();
  before.state_home = StateHome::nvme;
  before.residency = Residency::none;
  const std::filesystem::path run = harness.new_run();
  Outcome outcome;
  {
    const auto trainer = harness.make(before, run);
    harness.steps(*trainer, before, 3, outcome);
    trainer->commit();
  }
  TrainOptions after = before;
  after.state_home = StateHome::host;
  after.residency = Residency::all;
  after.threads = 1;
  {
    const auto trainer = harness.make(after, run, true);
    EXPECT_EQ(trainer->state().step, 3U);
    harness.steps(*trainer, after, 3, outcome);
    harness.finish(*trainer, outcome);
  }
  EXPECT_EQ(outcome, reference(tiny_gpt2(), DType::fp32));
}

TEST(Resume, LosesOnlyTheStepsAfterTheLastCommit) {
  TrainingHarness harness(tiny_gpt2());
  TrainOptions options = tiny_options();
  options.state_home = StateHome::nvme;
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

}  // namespace
}  // namespace spillway::engine
