// Boundary activations off the device: the same bits from anywhere, as few bytes as planned.
#include "runtime/plan/placement/boundaries.hpp"

#include <gtest/gtest.h>

#include "runtime/base/error.hpp"
#include "tests/engine/damaging_engine.hpp"
#include "tests/engine/expect_memory.hpp"
#include "tests/engine/steady_state.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::boundaries_test {
namespace {

using plan::Tier;

constexpr plan::Copy kMoves[] = {plan::kSaveActivation, plan::kLoadActivation,
                                 plan::kSpillActivation, plan::kFetchActivation};

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

struct Spread {
  std::vector<Tier> tiers;  ///< by block, the last again for all that follow
  std::uint32_t slots;
  std::uint32_t staging = 1;
  std::optional<Tier> saved{};
};

auto adjusted(const Spread& spread) {
  return [spread](const plan::Workload&, plan::Placement& placement) {
    for (std::size_t b = 0; b + 1 < placement.blocks.size(); ++b) {
      placement.blocks[b].output = spread.tiers[std::min(b, spread.tiers.size() - 1)];
      placement.blocks[b].saved = spread.saved;
    }
    placement.boundary_slots = spread.slots;
    placement.boundary_staging = spread.staging;
  };
}

const std::vector<Spread>& spreads() {
  static const std::vector<Spread> all{
      {.tiers = {Tier::host}, .slots = 1},
      {.tiers = {Tier::host}, .slots = 2},
      {.tiers = {Tier::host}, .slots = 5},
      {.tiers = {Tier::host}, .slots = 4, .saved = Tier::device},
      {.tiers = {Tier::nvme}, .slots = 1},
      {.tiers = {Tier::nvme}, .slots = 2},
      {.tiers = {Tier::nvme}, .slots = 3, .staging = 3},
      {.tiers = {Tier::nvme, Tier::host, Tier::device}, .slots = 4, .staging = 2},
      {.tiers = {Tier::device, Tier::nvme}, .slots = 6, .saved = Tier::device},
      {.tiers = {Tier::device}, .slots = 2},
  };
  return all;
}

TEST(BoundaryExactness, AnySpreadAndNumberOfSlotsGivesTheBitsOfTheDevice) {
  for (const std::uint32_t rounds : {1U, 3U}) {
    const config::TrainOptions options = options_of(3, rounds);
    TrainingHarness harness(tiny_gpt2());
    const Outcome device = harness.train(options, 4);
    for (std::size_t i = 0; i < spreads().size(); ++i) {
      harness.adjust_placement = adjusted(spreads()[i]);
      EXPECT_EQ(harness.train(options, 4), device) << "spread " << i << ", rounds " << rounds;
    }
  }
}

/// Layers of several blocks, of which the embedding's are the head's too.
model::ModelConfig tied_llama() {
  model::ModelConfig config = tiny_llama(3);
  config.tied_head = true;
  return config;
}

config::TrainOptions options_of_tiles(std::uint32_t micro_batches, std::uint32_t rounds) {
  config::TrainOptions options = options_of(micro_batches, rounds);
  options.operator_tile = 1500;
  return options;
}

TEST(BoundaryExactness, TilesGiveTheBitsOfTheDeviceFromAnySpread) {
  for (const config::WorkOrder order :
       {config::WorkOrder::layer_major, config::WorkOrder::micro_batch_major}) {
    config::TrainOptions options = options_of_tiles(3, 2);
    options.work_order = order;
    TrainingHarness harness(tied_llama());
    const Outcome device = harness.train(options, 3);
    for (std::size_t i = 0; i < spreads().size(); ++i) {
      harness.adjust_placement = adjusted(spreads()[i]);
      EXPECT_EQ(harness.train(options, 3), device)
          << "spread " << i << ", order " << static_cast<int>(order);
    }
  }
}

TEST(BoundaryExactness, AnEvaluationSeesTheSameLossFromAnywhere) {
  const config::TrainOptions options = options_of(3, 1);
  TrainingHarness harness(tiny_llama());
  const auto loss = [&] {
    const auto trainer = harness.make(options, harness.new_run());
    Outcome outcome;
    harness.steps(*trainer, options, 2, outcome);
    const double first = trainer->evaluate(harness.tokens()).loss;
    harness.steps(*trainer, options, 1, outcome);
    EXPECT_NE(trainer->evaluate(harness.tokens()).loss, first);
    return first;
  };
  const double device = loss();
  for (std::size_t i = 0; i < spreads().size(); ++i) {
    harness.adjust_placement = adjusted(spreads()[i]);
    EXPECT_EQ(loss(), device) << "spread " << i;
  }
}

TEST(BoundaryExactness, ARunResumesWithItsActivationsElsewhere) {
  const config::TrainOptions options = options_of(2, 2);
  TrainingHarness harness(tiny_llama());
  const Outcome whole = harness.train(options, 6);
  Outcome outcome;
  const std::filesystem::path run = harness.new_run();
  harness.adjust_placement = adjusted(spreads()[4]);
  {
    const auto trainer = harness.make(options, run);
    harness.steps(*trainer, options, 3, outcome);
    trainer->commit();
    EXPECT_TRUE(std::filesystem::exists(run / "state" / "activations-0.swap"));
  }
  // They are nothing to resume from: the file goes with the process that wrote it.
  EXPECT_FALSE(std::filesystem::exists(run / "state" / "activations-0.swap"));
  harness.adjust_placement = adjusted(spreads()[1]);
  const auto trainer = harness.make(options, run, true);
  harness.steps(*trainer, options, 3, outcome);
  harness.finish(*trainer, outcome);
  EXPECT_EQ(outcome, whole);
}

TEST(BoundaryExactness, WhatTheDiskGivesBackOtherwiseStopsTheRun) {
  TrainingHarness harness(tiny_gpt2());
  harness.adjust_placement = adjusted(spreads()[4]);
  expect_stopped_by_a_flipped_bit(harness, options_of(3, 1));
}

void expect_counted(TrainingHarness& harness, const config::TrainOptions& options) {
  for (std::size_t i = 0; i < spreads().size(); ++i) {
    harness.adjust_placement = adjusted(spreads()[i]);
    const auto trainer = harness.make(options, harness.new_run());
    Outcome outcome;
    constexpr std::uint64_t kSteps = 3;
    harness.steps(*trainer, options, kSteps, outcome);
    const plan::BoundaryTraffic traffic =
        plan::boundary_traffic(trainer->workload(), trainer->placement());
    const OpActions& actions = trainer->actions();
    EXPECT_EQ(actions.moved(plan::kSaveActivation), traffic.saved * kSteps) << "spread " << i;
    EXPECT_EQ(actions.moved(plan::kLoadActivation), traffic.saved * kSteps) << "spread " << i;
    EXPECT_EQ(actions.moved(plan::kSpillActivation), traffic.spilled * kSteps) << "spread " << i;
    EXPECT_EQ(actions.moved(plan::kFetchActivation), traffic.spilled * kSteps) << "spread " << i;
    for (const plan::Copy& kind : kMoves) {
      EXPECT_EQ(actions.moved(kind), plan::bytes_moved(trainer->step_plan(), kind) * kSteps);
    }
  }
}

TEST(BoundaryTraffic, CountersEqualTheFormulas) {
  TrainingHarness harness(tiny_llama());
  expect_counted(harness, options_of(3, 2));
}

TEST(BoundaryTraffic, CountersOfTilesEqualTheFormulas) {
  TrainingHarness harness(tied_llama());
  expect_counted(harness, options_of_tiles(3, 2));
}

TEST(BoundaryMemory, BackendHoldsExactlyWhatThePlanLists) {
  const auto expect_held = [](TrainingHarness harness, const config::TrainOptions& options) {
    for (const Spread& spread : spreads()) {
      harness.adjust_placement = adjusted(spread);
      const auto trainer = harness.make(options, harness.new_run());
      expect_memory_as_planned(*trainer);
    }
  };
  expect_held(TrainingHarness(tiny_gpt2()), options_of(4, 1));
  expect_held(TrainingHarness(tied_llama()), options_of_tiles(4, 1));
}

TEST(BoundaryMemory, MoreBoundariesThanTheDeviceHoldsTrainInItsBudget) {
  TrainingHarness harness(tiny_llama(6));
  config::TrainOptions options = options_of(64, 1);
  const auto device_need = [&](config::StateHome activations) {
    options.activations = activations;
    ModelRuntime model = make_model_runtime(harness.config(), options);
    const plan::Workload workload = make_workload(harness.config(), *model.transformer, options);
    const plan::Placement placement =
        place(harness.config(), options, workload, plan::Budgets{1_GiB, 1_GiB, 1_GiB});
    return plan::total(plan::memory_items(workload, placement), Tier::device);
  };
  const Bytes all = device_need(config::StateHome::device);
  const Outcome device = harness.train(options, 2);
  // Half of what the boundaries of 64 micro-batches take, then what passes alone.
  for (const Bytes budget : {all - 300_KiB, device_need(config::StateHome::host)}) {
    options.activations = config::StateHome::automatic;
    options.device_memory = budget;
    const auto trainer = harness.make(options, harness.new_run());
    EXPECT_TRUE(trainer->placement().any_output(Tier::host));
    Outcome outcome;
    harness.steps(*trainer, options, 2, outcome);
    harness.finish(*trainer, outcome);
    EXPECT_EQ(outcome, device);
    EXPECT_LE(trainer->backend().usage(offload::MemoryKind::device).high_water, budget);
  }
}

TEST(BoundarySteadyState, AllocatesNothingAndOpensNothing) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  TrainingHarness harness(tiny_gpt2());
  const config::TrainOptions options = options_of(3, 2);
  for (const std::size_t spread : {std::size_t{1}, std::size_t{5}}) {
    harness.adjust_placement = adjusted(spreads()[spread]);
    expect_steady(harness, options);
  }
  TrainingHarness tiles(tied_llama());
  tiles.adjust_placement = adjusted(spreads()[5]);
  expect_steady(tiles, options_of_tiles(3, 2));
}

}  // namespace
}  // namespace spillway::engine::boundaries_test
