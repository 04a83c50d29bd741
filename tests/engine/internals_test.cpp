// Kept activations on the host or on disk: the bits of recomputation and of the device, as few
// bytes as planned.
#include "runtime/plan/placement/internals.hpp"

#include <gtest/gtest.h>

#include "runtime/base/error.hpp"
#include "tests/engine/damaging_engine.hpp"
#include "tests/engine/expect_memory.hpp"
#include "tests/engine/steady_state.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::internals_test {
namespace {

using plan::Tier;

constexpr plan::Copy kLinkMoves[] = {plan::kSaveInternals, plan::kLoadInternals};
constexpr plan::Copy kDiskMoves[] = {plan::kSpillInternals, plan::kFetchInternals};

/// Rounds of as many micro-batches, parameters streamed and activations recomputed.
config::TrainOptions options_of(std::uint32_t micro_batches, std::uint32_t rounds) {
  config::TrainOptions options = tiny_options();
  options.compute = DType::bf16;
  options.micro_batch = 1;
  options.gradient_accumulation_steps = micro_batches * rounds;
  options.rounds = rounds;
  options.state_home = config::StateHome::host;
  options.residency = config::Residency::none;
  options.checkpointing = config::Checkpointing::recompute;
  return options;
}

constexpr std::optional<Tier> kRecomputed, kKept{Tier::device}, kOffloaded{Tier::host},
    kOnDisk{Tier::nvme};

struct Spread {
  std::vector<std::optional<Tier>> saved;  ///< by block, the last again for all that follow
  std::uint32_t slots = 2;
  Tier boundaries = Tier::device;
  std::uint32_t staging = 1;
};

auto adjusted(const Spread& spread) {
  return [spread](const plan::Workload&, plan::Placement& placement) {
    for (std::size_t b = 0; b + 1 < placement.blocks.size(); ++b) {
      placement.blocks[b].saved = spread.saved[std::min(b, spread.saved.size() - 1)];
      placement.blocks[b].output = spread.boundaries;
    }
    placement.saved_slots = spread.slots;
    placement.saved_staging = placement.any_saved(Tier::nvme) ? spread.staging : 0;
    placement.boundary_slots = spread.boundaries == Tier::device ? 0 : 3;
    placement.boundary_staging = spread.boundaries == Tier::nvme ? 2 : 0;
  };
}

const std::vector<Spread>& spreads() {
  static const std::vector<Spread> all{
      {.saved = {kOffloaded}, .slots = 2},
      {.saved = {kOffloaded}, .slots = 3},
      {.saved = {kOffloaded}, .slots = 7},
      {.saved = {kRecomputed, kOffloaded, kKept}, .slots = 2},
      {.saved = {kKept, kKept, kOffloaded, kRecomputed}, .slots = 4},
      {.saved = {kOffloaded}, .slots = 2, .boundaries = Tier::host},
      {.saved = {kOffloaded}, .slots = 3, .boundaries = Tier::host},
      {.saved = {kRecomputed, kRecomputed, kOffloaded}, .slots = 2, .boundaries = Tier::nvme},
      {.saved = {kOnDisk}, .slots = 2},
      {.saved = {kOnDisk, kOnDisk, kOffloaded, kOnDisk}, .slots = 3, .staging = 3},
      {.saved = {kRecomputed, kOnDisk, kKept}, .slots = 4, .boundaries = Tier::nvme, .staging = 2},
  };
  return all;
}

TEST(InternalsExactness, AnySpreadAndNumberOfSlotsGivesTheBitsOfRecomputation) {
  for (const config::WorkOrder order :
       {config::WorkOrder::layer_major, config::WorkOrder::micro_batch_major}) {
    for (const std::uint32_t rounds : {1U, 3U}) {
      config::TrainOptions options = options_of(3, rounds);
      options.work_order = order;
      TrainingHarness harness(tiny_gpt2());
      const Outcome recomputed = harness.train(options, 4);
      options.checkpointing = config::Checkpointing::keep;
      EXPECT_EQ(harness.train(options, 4), recomputed);
      for (std::size_t i = 0; i < spreads().size(); ++i) {
        harness.adjust_placement = adjusted(spreads()[i]);
        EXPECT_EQ(harness.train(options, 4), recomputed)
            << "spread " << i << ", rounds " << rounds << ", order " << static_cast<int>(order);
      }
    }
  }
}

TEST(InternalsExactness, ManyMicroBatchesThroughTwoSlotsGiveTheBitsOfTheDevice) {
  const config::TrainOptions options = options_of(9, 2);
  TrainingHarness harness(tiny_llama(4));
  const Outcome device = harness.train(options, 3);
  for (const std::size_t spread : {std::size_t{0}, spreads().size() - 3}) {
    harness.adjust_placement = adjusted(spreads()[spread]);
    EXPECT_EQ(harness.train(options, 3), device);
  }
}

TEST(InternalsExactness, AnEvaluationSeesTheSameLossAndMovesNothing) {
  const config::TrainOptions options = options_of(3, 1);
  TrainingHarness harness(tiny_llama());
  const auto loss = [&] {
    const auto trainer = harness.make(options, harness.new_run());
    Outcome outcome;
    harness.steps(*trainer, options, 2, outcome);
    const Bytes before = trainer->actions().moved(plan::kSaveInternals);
    const double first = trainer->evaluate(harness.tokens()).loss;
    EXPECT_EQ(trainer->actions().moved(plan::kSaveInternals), before);
    harness.steps(*trainer, options, 1, outcome);
    EXPECT_NE(trainer->evaluate(harness.tokens()).loss, first);
    return first;
  };
  const double device = loss();
  for (const std::size_t i : {std::size_t{0}, std::size_t{5}}) {
    harness.adjust_placement = adjusted(spreads()[i]);
    EXPECT_EQ(loss(), device) << "spread " << i;
  }
}

TEST(InternalsExactness, ARunResumesWithItsActivationsElsewhere) {
  const config::TrainOptions options = options_of(2, 2);
  TrainingHarness harness(tiny_llama());
  const Outcome whole = harness.train(options, 6);
  Outcome outcome;
  const std::filesystem::path run = harness.new_run();
  harness.adjust_placement = adjusted(spreads().back());
  {
    const auto trainer = harness.make(options, run);
    harness.steps(*trainer, options, 3, outcome);
    trainer->commit();
  }
  harness.adjust_placement = adjusted(spreads()[3]);
  const auto trainer = harness.make(options, run, true);
  harness.steps(*trainer, options, 3, outcome);
  harness.finish(*trainer, outcome);
  EXPECT_EQ(outcome, whole);
}

TEST(InternalsTraffic, CountersEqualTheFormula) {
  TrainingHarness harness(tiny_llama());
  const config::TrainOptions options = options_of(3, 2);
  for (std::size_t i = 0; i < spreads().size(); ++i) {
    harness.adjust_placement = adjusted(spreads()[i]);
    const auto trainer = harness.make(options, harness.new_run());
    Outcome outcome;
    constexpr std::uint64_t kSteps = 3;
    harness.steps(*trainer, options, kSteps, outcome);
    const plan::InternalsTraffic traffic =
        plan::internals_traffic(trainer->workload(), trainer->placement());
    EXPECT_GT(traffic.saved, Bytes{}) << "spread " << i;
    const auto expect_moved = [&](const plan::Copy& kind, Bytes bytes) {
      EXPECT_EQ(trainer->actions().moved(kind), bytes * kSteps) << "spread " << i;
      EXPECT_EQ(plan::bytes_moved(trainer->step_plan(), kind), bytes) << "spread " << i;
    };
    for (const plan::Copy& kind : kLinkMoves) expect_moved(kind, traffic.saved);
    for (const plan::Copy& kind : kDiskMoves) expect_moved(kind, traffic.spilled);
  }
}

TEST(InternalsMemory, BackendHoldsExactlyWhatThePlanLists) {
  TrainingHarness harness(tiny_gpt2());
  const config::TrainOptions options = options_of(4, 1);
  for (const Spread& spread : spreads()) {
    harness.adjust_placement = adjusted(spread);
    const auto trainer = harness.make(options, harness.new_run());
    expect_memory_as_planned(*trainer);
  }
}

TEST(InternalsMemory, WhatTheDeviceCannotKeepTrainsInItsBudget) {
  TrainingHarness harness(tiny_llama(6));
  config::TrainOptions options = options_of(16, 1);
  const Outcome recomputed = harness.train(options, 2);
  options.checkpointing = config::Checkpointing::keep;
  ModelRuntime model = make_model_runtime(harness.config(), options);
  const plan::Workload workload = make_workload(harness.config(), *model.transformer, options);
  const plan::Budgets plenty{1_GiB, 1_GiB, 1_GiB};
  const plan::Placement kept = place(harness.config(), options, workload, plenty);
  const Bytes saved = workload.blocks[1].saved_bytes;
  // All six layers' do not fit, those of three do.
  options.device_memory =
      plan::total(plan::memory_items(workload, kept), Tier::device) - saved * (3ULL * 16);
  options.activations = config::StateHome::device;
  EXPECT_THROW((void)harness.make(options, harness.new_run()), Error);
  for (const auto& [checkpointing, home] : {std::pair{config::Checkpointing::offload, Tier::host},
                                            std::pair{config::Checkpointing::nvme, Tier::nvme}}) {
    options.checkpointing = checkpointing;
    const auto trainer = harness.make(options, harness.new_run());
    EXPECT_EQ(trainer->placement().blocks[1].saved, home);
    EXPECT_EQ(trainer->placement().blocks[6].saved, Tier::device);
    Outcome outcome;
    harness.steps(*trainer, options, 2, outcome);
    harness.finish(*trainer, outcome);
    EXPECT_EQ(outcome, recomputed);
    EXPECT_LE(trainer->backend().usage(offload::MemoryKind::device).high_water,
              *options.device_memory);
  }
}

TEST(InternalsExactness, WhatTheDiskGivesBackOtherwiseStopsTheRun) {
  TrainingHarness harness(tiny_gpt2());
  harness.adjust_placement = adjusted({.saved = {kOnDisk}, .slots = 2});
  expect_stopped_by_a_flipped_bit(harness, options_of(3, 1));
}

TEST(InternalsSteadyState, AllocatesNothingAndOpensNothing) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  TrainingHarness harness(tiny_gpt2());
  const config::TrainOptions options = options_of(3, 2);
  for (const std::size_t spread : {std::size_t{0}, std::size_t{5}, spreads().size() - 1}) {
    harness.adjust_placement = adjusted(spreads()[spread]);
    expect_steady(harness, options);
  }
}

}  // namespace
}  // namespace spillway::engine::internals_test
