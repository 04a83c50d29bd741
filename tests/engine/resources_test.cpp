// Memory and traffic of a run: as planned, to the byte, and constant from step to step.
#include <gtest/gtest.h>

#include <cstring>

#include "offload/host/host_backend.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/step/memory.hpp"
#include "tests/engine/expect_memory.hpp"
#include "tests/engine/steady_state.hpp"
#include "tests/engine/training_harness.hpp"
#include "tests/support/forked_child.hpp"

namespace spillway::engine::resources_test {
namespace {

using plan::Tier;

config::TrainOptions streamed_options() {
  config::TrainOptions options = tiny_options();
  options.state_home = config::StateHome::nvme;
  options.residency = config::Residency::none;
  options.checkpointing = config::Checkpointing::recompute;
  options.gradient_sums = config::SumsHome::host;
  return options;
}

std::uint64_t padded_parameters(const plan::Workload& workload) {
  std::uint64_t sum = 0;
  for (const auto& block : workload.blocks) sum += block.padded_parameters.value();
  return sum;
}

TEST(Memory, BackendHoldsExactlyWhatThePlanLists) {
  TrainingHarness harness(tiny_gpt2());
  for (const config::StateHome home :
       {config::StateHome::device, config::StateHome::host, config::StateHome::nvme}) {
    config::TrainOptions options = tiny_options();
    options.compute = DType::bf16;
    options.state_format = StateFormat::int8;
    options.state_home = home;
    const auto trainer = harness.make(options, harness.new_run());
    expect_memory_as_planned(*trainer);
  }
}

TEST(Memory, AForkedChildHasParametersAndNoOtherPoolOfTheHost) {
  using plan::PoolKind;
  plan::Pools pools;
  for (plan::Pool& pool : pools) pool.ends = {3 * kPageBytes};
  const auto backend =
      offload::make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB});
  const Memory memory(pools, *backend);
  for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
    const auto kind = static_cast<PoolKind>(p);
    if (plan::tier_of(kind) != Tier::host) continue;
    const bool aliased = kind == PoolKind::host_parameters || kind == PoolKind::host_frozen;
    EXPECT_EQ(test_support::ends_in_child(memory.all_host(kind)), aliased ? 2 : 0)
        << plan::label_of(kind);
  }
}

TEST(Memory, AModelWithEightTimesTheBudgetInStateTrainsInsideIt) {
  // State: 16 bytes a parameter (fp32 parameter, master, m, v).
  TrainingHarness harness(tiny_llama(48));
  config::TrainOptions options = streamed_options();
  options.prefetch = 1;
  ModelRuntime model = make_model_runtime(harness.config(), options);
  const std::uint64_t state =
      16 * padded_parameters(make_workload(harness.config(), *model.transformer, options));
  options.device_memory = Bytes{state / 8};
  const auto trainer = harness.make(options, harness.new_run());
  Outcome outcome;
  harness.steps(*trainer, options, 3, outcome);
  const auto usage = trainer->engine().backend().usage(offload::MemoryKind::device);
  EXPECT_LE(usage.high_water, Bytes{state / 8});
  EXPECT_LT(outcome.losses[2], 5.0);
}

TEST(Memory, RefusalNamesTheTierTheBytesAndARemedy) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = streamed_options();
  options.micro_batch = 16;
  // It needs 1,393 or more: products ask for less room on a Zen 3.
  options.device_memory = 1200_KiB;
  try {
    (void)harness.make(options, harness.new_run());
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    const std::string text = error.what();
    EXPECT_NE(text.find("device memory needs at least"), std::string::npos) << text;
    EXPECT_NE(text.find("--device-memory of at least"), std::string::npos) << text;
    EXPECT_NE(text.find("train_micro_batch_size_per_gpu"), std::string::npos) << text;
  }
}

TEST(Memory, TemporaryDeviceBuffersDoNotGrowWithTheNumberOfLayers) {
  const auto temporaries = [](std::uint32_t layers) {
    TrainingHarness harness(tiny_llama(layers));
    const auto trainer = harness.make(streamed_options(), harness.new_run());
    Bytes sum;
    for (const auto& item :
         plan::memory_items(trainer->engine().workload(), trainer->engine().placement())) {
      if (item.tier == Tier::device && item.what != "boundary activations") sum += item.bytes;
    }
    return sum;
  };
  EXPECT_EQ(temporaries(2), temporaries(8));
}

/// The most device memory that one more allocation can have.
Bytes largest_free_range(offload::DeviceBackend& backend) {
  Bytes low{};
  Bytes high = backend.usage(offload::MemoryKind::device).capacity;
  while (low < high) {
    const Bytes middle = high - Bytes{(high - low).value() / 2};
    try {
      const offload::DeviceMemory probe(backend, middle);
      low = middle;
    } catch (const Error&) {
      high = middle - Bytes{1};
    }
  }
  return low;
}

TEST(Memory, TheLargestFreeDeviceRangeIsTheSameAfterAThousandStepsAsAfterTwo) {
  TrainingHarness harness(tiny_llama(1));
  config::TrainOptions options = streamed_options();
  options.micro_batch = 1;
  options.gradient_accumulation_steps = 1;
  options.rounds = 1;
  const auto trainer = harness.make(options, harness.new_run());
  const data::Sampler sampler = harness.sampler(options);
  for (int i = 0; i < 2; ++i) trainer->step(harness.tokens(), sampler);
  const Bytes after_two = largest_free_range(trainer->engine().backend());
  EXPECT_GT(after_two, 1_MiB);
  for (int i = 2; i < 1000; ++i) trainer->step(harness.tokens(), sampler);
  EXPECT_EQ(largest_free_range(trainer->engine().backend()), after_two);
}

/// What a step reads for the one after it.
Bytes read_ahead(const Trainer& trainer) {
  Bytes sum;
  for (const plan::Op& op : trainer.cycle().lists().step_plan().ops) {
    if (is_copy(op, plan::kReadState) && !op.if_pending) sum += op.bytes;
  }
  return sum;
}

TEST(Traffic, CountersEqualTheFormulas) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = streamed_options();
  const auto trainer = harness.make(options, harness.new_run());
  Outcome outcome;
  constexpr std::uint64_t kSteps = 4;
  harness.steps(*trainer, options, kSteps, outcome);
  const plan::Workload& w = trainer->engine().workload();
  const std::uint64_t all = padded_parameters(w);
  const std::uint64_t embedding = w.blocks.front().padded_parameters.value();
  const std::uint64_t head = w.blocks.back().padded_parameters.value();
  // Layers are visited forward and backward, the tied embedding forward and at the head, the head
  // once; 4 bytes an element, twice for the two rounds.
  const std::uint64_t visits = 2 * (all - embedding - head) + 2 * embedding + head;
  EXPECT_EQ(trainer->engine().actions().moved(plan::kUploadParams).value(),
            kSteps * 2 * 4 * visits);
  EXPECT_EQ(trainer->engine().actions().moved(plan::kDownloadGrads).value(), kSteps * 2 * 4 * all);
  // The update of step n runs in step n + 1: fp32 state is 12 bytes each way.
  // What it reads first, the step before has read ahead.
  const std::uint64_t ahead = read_ahead(*trainer).value();
  EXPECT_GT(ahead, 0U);
  EXPECT_EQ(trainer->engine().actions().moved(plan::kReadState).value(),
            (kSteps - 1) * 12 * all + ahead);
  EXPECT_EQ(trainer->engine().actions().moved(plan::kWriteState).value(), (kSteps - 1) * 12 * all);
  for (const plan::Copy& kind : {plan::kUploadParams, plan::kDownloadGrads}) {
    EXPECT_EQ(trainer->engine().actions().moved(kind),
              plan::bytes_moved(trainer->cycle().lists().step_plan(), kind) * kSteps);
  }
}

TEST(Traffic, RoundsSummedOnTheDeviceLeaveItOnce) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = streamed_options();
  options.gradient_sums = config::SumsHome::device;
  const auto trainer = harness.make(options, harness.new_run());
  ASSERT_GT(trainer->engine().workload().rounds, 1U);
  Outcome outcome;
  constexpr std::uint64_t kSteps = 3;
  harness.steps(*trainer, options, kSteps, outcome);
  EXPECT_EQ(trainer->engine().actions().moved(plan::kDownloadGrads).value(),
            kSteps * 4 * padded_parameters(trainer->engine().workload()));
}

TEST(Traffic, OfStateOnDiskIsThatOfItsFormat) {
  struct PerParameter {
    StateFormat format;
    double read, written;
  };
  // int8 has 8 bytes of scales for 256 parameters, in whole pages a tile.
  for (const auto& [format, read, written] : {PerParameter{StateFormat::split, 10, 12},
                                              {StateFormat::bf16, 6, 8},
                                              {StateFormat::int8, 4.5, 6.5}}) {
    TrainingHarness harness(tiny_llama());
    config::TrainOptions options = streamed_options();
    options.compute = DType::bf16;
    options.state_format = format;
    const auto trainer = harness.make(options, harness.new_run());
    Outcome outcome;
    harness.steps(*trainer, options, 3, outcome);
    const auto all = static_cast<double>(padded_parameters(trainer->engine().workload()));
    // Scales fill whole pages.
    const double exact = format == StateFormat::int8 ? 0.5 * all : 0;
    const plan::StepPlan& plan = trainer->cycle().lists().step_plan();
    const Bytes in_a_step = plan::bytes_moved(plan, plan::kReadState);
    const Bytes out_of_a_step = plan::bytes_moved(plan, plan::kWriteState);
    EXPECT_NEAR(static_cast<double>(in_a_step.value()), read * all, exact);
    EXPECT_NEAR(static_cast<double>(out_of_a_step.value()), written * all, exact);
    const OpActions& actions = trainer->engine().actions();
    EXPECT_EQ(actions.moved(plan::kReadState), in_a_step * 2U + read_ahead(*trainer));
    EXPECT_EQ(actions.moved(plan::kWriteState), out_of_a_step * 2U);
  }
}

TEST(Traffic, ResidentParametersMoveUpOncePerUpdate) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = tiny_options();
  options.state_home = config::StateHome::host;
  options.residency = config::Residency::all;
  const auto trainer = harness.make(options, harness.new_run());
  Outcome outcome;
  harness.steps(*trainer, options, 4, outcome);
  EXPECT_EQ(
      trainer->engine().actions().moved(plan::kUploadParams).value(),
      3 * 4 * padded_parameters(trainer->engine().workload()));  // the fourth update is pending
}

TEST(Commits, LeftOutTakeNoDiskForStateInMemoryAndChangeNoBit) {
  TrainingHarness harness(tiny_llama());
  for (const config::StateHome home :
       {config::StateHome::device, config::StateHome::host, config::StateHome::nvme}) {
    config::TrainOptions options = tiny_options();
    options.compute = DType::bf16;
    options.state_format = StateFormat::split;
    options.state_home = home;
    const Outcome committed = harness.train(options, 3);
    options.commits = false;
    const auto trainer = harness.make(options, harness.new_run());
    Outcome outcome;
    harness.steps(*trainer, options, 3, outcome);
    harness.finish(*trainer, outcome);
    EXPECT_EQ(outcome, committed);
    EXPECT_FALSE(trainer->engine().store()->committed().has_value());
    const auto items =
        plan::memory_items(trainer->engine().workload(), trainer->engine().placement());
    const bool on_disk = home == config::StateHome::nvme;
    EXPECT_EQ(plan::total(items, Tier::nvme) > Bytes{}, on_disk);
    EXPECT_EQ(trainer->engine().store()->counters().written > Bytes{}, on_disk);
    if (on_disk) continue;
    // A tile of a store has a page at least.
    const std::vector<Bytes>& tiles = trainer->engine().store()->layout().tiles;
    EXPECT_GT(tiles.size(), 1U);
    EXPECT_EQ(std::ranges::count(tiles, Bytes{kPageBytes}), std::ssize(tiles));
  }
}

TEST(SteadyState, AllocatesNothingAndOpensNothing) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  TrainingHarness harness(tiny_gpt2());
  for (const auto engine : {nvme_swap::EngineKind::uring, nvme_swap::EngineKind::posix}) {
    config::TrainOptions options = streamed_options();
    options.io_engine = engine;
    options.compute = DType::bf16;
    options.state_format = StateFormat::split;
    expect_steady(harness, options);
  }
}

TEST(Skipping, ANonFiniteGradientLeavesAllStateBitUnchangedAndIsCounted) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = streamed_options();
  options.compute = DType::fp16;
  // A scale this large overflows fp16 gradients at once.
  options.loss_scale.initial = 0x1p40;
  const auto trainer = harness.make(options, harness.new_run());
  const data::Sampler sampler = harness.sampler(options);
  std::vector<float> before(trainer->layout().blocks[1].padded_parameters.value());
  std::vector<float> after = before;
  trainer->cycle().read_masters(1, before);
  const StepResult result = trainer->step(harness.tokens(), sampler).back();
  EXPECT_TRUE(result.skipped);
  trainer->cycle().commit();
  trainer->cycle().read_masters(1, after);
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
  EXPECT_EQ(trainer->state().skipped, 1U);
  EXPECT_EQ(trainer->state().updates, 0U);
  EXPECT_EQ(trainer->state().step, 1U);
}

}  // namespace
}  // namespace spillway::engine::resources_test
