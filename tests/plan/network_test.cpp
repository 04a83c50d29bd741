// Steps over a network that is as slow as compute: their predicted times against those that follow
// from the order of collectives by hand, and the choice of how far ahead blocks are gathered.
#include <gtest/gtest.h>

#include <optional>

#include "runtime/plan/predict/price.hpp"
#include "runtime/plan/search/fastest.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::network_test {
namespace {

/// Embedding, two layers and head of one size: forward of each takes 1 s, and backward 2 s. What
/// else a step does takes less than 1e-6 s.
Workload even_blocks(Sharding sharding) {
  Workload workload = small_workload();
  workload.compute = DType::bf16;
  workload.replicas = {.count = 2, .sharding = sharding};
  for (BlockShape& block : workload.blocks) {
    block.parameters = ElementCount{2 * kLeafParameters};
    block.forward_flops = 1;
    block.backward_flops = 2;
  }
  pad_for_ranks(workload);
  return workload;
}

/// A gather or a reduce_scatter of a block takes `collective` seconds.
MachineProfile machine_with(double collective) {
  MachineProfile machine;
  machine.gpu_flops = 1;
  machine.h2d = machine.d2h = machine.update = 1e15;
  machine.net = static_cast<double>((Bytes{2} * kLeafParameters).value()) / collective;
  return machine;
}

double seconds_of_step(const Workload& workload, const Placement& placement, double collective) {
  const StepPlan plan = build_training_step(workload, placement);
  return simulate(plan, machine_with(collective)).step_seconds;
}

const PlacementRequest kRequest{
    .state = Tier::host, .resident = false, .keep = true, .activations = Tier::device};

// Collectives of 2 s, in the order of the list; h: the head, whose loss is both passes.
//   in order  gather 0 1 2 h                      forward 2..3, 4..5, 6..7, head 8..11
//   1 ahead   gather 2 8..10, reduce h 11..13, gather 1 13..15, reduce 2 15..17, 1 17..19, 0 19..21
//   2 ahead   gather 2 8..10, gather 1 10..12, reduce h 12..14, 2 14..16, 1 16..18, 0 18..20
// With one ahead, the gather of block 1 waits for the slot of the head, and the next backward for
// it. With two, backward is over at 17, and the network is never idle.
TEST(StepsOverANetwork, TakeWhatTheOrderOfCollectivesAllows) {
  const Workload w = even_blocks(Sharding::parameters);
  Placement placement = chosen(w, kUnlimited, kRequest);
  constexpr double kExpected[] = {21, 20, 20};
  for (const std::uint32_t slots : {2U, 3U, 4U}) {
    placement.parameter_slots = slots;
    EXPECT_NEAR(seconds_of_step(w, placement, 2), kExpected[slots - 2], 1e-6) << slots;
    // Over a network twice as fast, 1 s, forward and backward wait for the first gather alone, and
    // nobody for all but the last reduction: 1 + 12 + 1.
    EXPECT_NEAR(seconds_of_step(w, placement, 1), 14, 1e-6) << slots;
  }
}

// Stages 1 and 2 gather in forward alone, which then waits for four gathers of 2 s, and end with a
// reduction behind three blocks' backward: 8 + 3 + 6 + 2. Stage 0 reduces, twice as long, behind
// the head: 6 + 4 * 4.
TEST(StepsOverANetwork, WaitForGathersInForwardAndForReductionsInBackwardBelowStage3) {
  const Workload shared = even_blocks(Sharding::state);
  EXPECT_NEAR(seconds_of_step(shared, chosen(shared, kUnlimited), 2), 19, 1e-6);
  const Workload whole = even_blocks(Sharding::none);
  EXPECT_NEAR(seconds_of_step(whole, chosen(whole, kUnlimited), 2), 22, 1e-6);
}

/// Layers whose forward and backward take a second together, between an embedding and a head that
/// take next to nothing.
Workload one_second_of(std::uint32_t layers, Sharding sharding) {
  Workload workload = even_blocks(sharding);
  for (BlockShape& block : workload.blocks) block.forward_flops = block.backward_flops = 0;
  BlockShape& layer = workload.blocks[1];
  layer.parameters = layer.padded_parameters = ElementCount{1024 * kLeafParameters};
  layer.forward_flops = 1.0 / (3 * layers);
  layer.backward_flops = 2.0 / (3 * layers);
  workload.blocks.erase(workload.blocks.begin() + 2);
  workload.blocks.insert(workload.blocks.begin() + 1, layers - 1, BlockShape(workload.blocks[1]));
  return workload;
}

// docs/measurements.md, "Training on ranks": all that is sent takes a second too. Stage 0 sends it
// from the end of the first layer's backward on. Stages 1 and 2 gather in half a second; then the
// last layer's forward, backward and the last reduction follow. Stage 3 waits for the first gather
// and the last reduction alone.
TEST(StepsOverANetwork, AreLongerThanComputeByWhatTheirStageCannotHide) {
  for (const std::uint32_t layers : {6U, 18U}) {
    const double layer = 1.0 / layers;
    const double expected[] = {4.0 / 3 + 2 * layer / 3, 7.0 / 6 + 5 * layer / 6, 1 + 2 * layer / 3};
    for (const Sharding sharding : {Sharding::none, Sharding::state, Sharding::parameters}) {
      const Workload w = one_second_of(layers, sharding);
      const Placement first = chosen(w, kUnlimited, {.state = Tier::host, .keep = true});
      MachineProfile machine = machine_with(1);
      machine.net = work_of_blocks(w, first).net;
      const PlannedStep step =
          fastest_placement(w, kUnlimited, {.state = Tier::host, .keep = true}, machine, first);
      // The embedding and the head have a 500th of a layer each.
      EXPECT_NEAR(step.prediction.step_seconds, expected[static_cast<int>(sharding)], 0.01 * layer);
    }
  }
}

PlannedStep fastest(const Workload& workload, const Budgets& budgets,
                    const PlacementRequest& request, double collective) {
  const Placement first = chosen(workload, budgets, request);
  return fastest_placement(workload, budgets, request, machine_with(collective), first);
}

// What the host updates of several ranks is added up there, whatever the request says.
TEST(ChosenForRanks, SumRoundsOnTheHostAlone) {
  for (const Sharding sharding : {Sharding::none, Sharding::state, Sharding::parameters}) {
    Workload w = even_blocks(sharding);
    w.rounds = 2;
    for (const std::optional<bool> sums : {std::optional<bool>(), std::optional(true)}) {
      for (const BlockCut& cut : chosen(w, kUnlimited, {.sums = sums}).blocks) {
        EXPECT_EQ(cut.gradients, Tier::host);
      }
    }
  }
}

TEST(FastestOverANetwork, GathersAsFarAheadAsMakesTheStepShorter) {
  const Workload w = even_blocks(Sharding::parameters);
  const PlannedStep step = fastest(w, kUnlimited, kRequest, 2);
  EXPECT_EQ(step.placement.parameter_slots, 3U) << "a third block ahead gains nothing";
  EXPECT_NEAR(step.prediction.step_seconds, 20, 1e-6);
  expect_correct({w, step.placement});
  EXPECT_EQ(fastest(w, kUnlimited, kRequest, 1).placement.parameter_slots, 2U);
}

TEST(FastestOverANetwork, GathersOneBlockAheadWhereMemoryForbidsMore) {
  const Workload w = even_blocks(Sharding::parameters);
  PlacementRequest two_ahead = kRequest;
  two_ahead.prefetch = 2;
  const Placement first = chosen(w, kUnlimited, kRequest);
  const Bytes enough = needed(w, chosen(w, kUnlimited, two_ahead), Tier::device);
  Budgets budgets = kUnlimited;
  budgets.device = enough;
  EXPECT_EQ(fastest(w, budgets, kRequest, 2).placement.parameter_slots, 3U);
  budgets.device = enough - Bytes{1};
  EXPECT_EQ(fastest(w, budgets, kRequest, 2).placement, first);
}

TEST(FastestOverANetwork, KeepsToTheDistanceThatWasAskedFor) {
  const Workload w = even_blocks(Sharding::parameters);
  for (const std::uint32_t prefetch : {0U, 1U, 3U}) {
    PlacementRequest request = kRequest;
    request.prefetch = prefetch;
    EXPECT_EQ(fastest(w, kUnlimited, request, 2).placement.parameter_slots, prefetch + 1);
  }
}

TEST(FastestOverANetwork, LeavesTheSlotsOfOneRankAlone) {
  Workload w = even_blocks(Sharding::parameters);
  w.replicas = {};
  const PlannedStep step = fastest(w, kUnlimited, kRequest, 2);
  EXPECT_EQ(step.placement.parameter_slots, 2U);
  EXPECT_EQ(step.simulated, 1U);
}

}  // namespace
}  // namespace spillway::plan::network_test
