// Kept activations that wait off the device: the plan against the formula, and its slots.
#include "runtime/plan/placement/internals.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::internals_test {
namespace {

constexpr Copy kLinkMoves[] = {kSaveInternals, kLoadInternals};
constexpr Copy kDiskMoves[] = {kSpillInternals, kFetchInternals};

Case next_offloaded(RandomCases& cases) {
  Workload w = cases.workload();
  w.micro_batches = static_cast<std::uint32_t>(cases.between(1, 6));
  Placement p = cases.placement(w);
  cases.offload_internals(w, p);
  return {std::move(w), std::move(p)};
}

Placement offloaded(const Workload& workload, std::uint32_t slots) {
  Placement placement =
      uniform_placement(workload, {.parameters = Tier::device, .saved = Tier::host});
  placement.saved_slots = slots;
  return placement;
}

TEST(Internals, PrintTheirWayAsTheGoldenFile) {
  Workload workload = small_workload();
  workload.micro_batches = 3;
  Placement placement = offloaded(workload, 2);
  placement.blocks[2].saved = Tier::device;
  expect_golden("step_offloaded_internals.txt", to_text(build_training_step(workload, placement)));
}

TEST(InternalsProperty, MoveWhatTheFormulaSays) {
  RandomCases cases(property_seed());
  int moved = 0;
  for (int i = 0; i < 500; ++i) {
    const auto [workload, placement] = next_offloaded(cases);
    const InternalsTraffic traffic = internals_traffic(workload, placement);
    moved += traffic.spilled > Bytes{} ? 1 : 0;
    for (const StepPlan& plan :
         {build_training_step(workload, placement), build_recorded_step(workload, placement)}) {
      for (const Copy& kind : kLinkMoves) {
        EXPECT_EQ(bytes_moved(plan, kind), traffic.saved) << "case " << i;
      }
      for (const Copy& kind : kDiskMoves) {
        EXPECT_EQ(bytes_moved(plan, kind), traffic.spilled) << "case " << i;
      }
    }
  }
  EXPECT_GT(moved, 100);
}

TEST(Internals, CrossTheLinkOnceEachWayForEveryMicroBatch) {
  Workload workload = small_workload();
  workload.micro_batches = 5;
  workload.rounds = 2;
  // Two layers of 1000 bytes; the embedding and the head save nothing.
  Placement placement = offloaded(workload, 2);
  EXPECT_EQ(internals_traffic(workload, placement).saved, Bytes{2 * 1000 * 5 * 2});
  EXPECT_EQ(internals_traffic(workload, placement).spilled, Bytes{});
  // On the disk they take whole pages.
  placement.blocks[1].saved = Tier::nvme;
  EXPECT_EQ(internals_traffic(workload, placement).saved, Bytes{2 * 1000 * 5 * 2});
  EXPECT_EQ(internals_traffic(workload, placement).spilled, Bytes{4096 * 5 * 2});
}

TEST(Internals, MoveNothingButInTraining) {
  const Workload workload = small_workload();
  for (const bool offload : {true, false}) {
    Placement placement = offloaded(workload, 2);
    for (BlockCut& block : placement.blocks) block.saved = offload ? Tier::host : Tier::device;
    for (const Copy& kind : kLinkMoves) {
      EXPECT_EQ(bytes_moved(build_evaluation(workload, placement), kind), Bytes{});
      EXPECT_EQ(bytes_moved(build_flush(workload, placement), kind), Bytes{});
      EXPECT_EQ(bytes_moved(build_snapshot(workload, placement), kind), Bytes{});
      const Bytes trained = bytes_moved(build_training_step(workload, placement), kind);
      EXPECT_EQ(trained > Bytes{}, offload);
    }
  }
}

TEST(Internals, UseTheirSlotsInTurnAndRecomputeNothing) {
  Workload workload = small_workload();
  workload.micro_batches = 4;
  std::map<std::uint32_t, int> used;
  const StepPlan plan = build_training_step(workload, offloaded(workload, 3));
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::backward) {
      EXPECT_EQ(op.flops, workload.blocks[op.block].backward_flops);
    }
    for (const auto slot : used_of(plan, op, PoolKind::kept_activation_slots)) ++used[slot];
  }
  // Two layers of four micro-batches take a slot for forward and save, and for load and backward:
  // 16 times, in turn.
  EXPECT_EQ(used, (std::map<std::uint32_t, int>{{0, 2 * 6}, {1, 2 * 5}, {2, 2 * 5}}));
}

/// The layers' passes take 1 ms forward and 1 ms back, and nothing else takes time.
struct Timed {
  Workload workload = small_workload();
  MachineProfile profile;
  Timed() {
    workload.micro_batches = 16;
    for (BlockShape& block : workload.blocks) {
      const bool layer = block.saved_bytes > Bytes{};
      block.forward_flops = block.backward_flops = layer ? 1e6 : 0;
    }
    profile.gpu_flops = 1e9;
  }
  /// State on the device: nothing else crosses the link.
  [[nodiscard]] double seconds(Placement placement) const {
    for (BlockCut& block : placement.blocks) block.state = block.gradients = Tier::device;
    return simulate(build_training_step(workload, placement), profile).step_seconds;
  }
};

TEST(Internals, TwoSlotsHideALinkThatKeepsUp) {
  Timed timed;
  timed.profile.h2d = timed.profile.d2h = 1000 / 0.8e-3;
  const double compute = 16 * 2 * 2 * 1e-3;
  // Not hidden: the last save, which the first load waits for, and that load, 0.8 ms each.
  EXPECT_LT(timed.seconds(offloaded(timed.workload, 2)), compute + 1.7e-3);
  // Recomputation adds a forward to every backward.
  Placement recomputed = uniform_placement(timed.workload, {.parameters = Tier::device});
  EXPECT_GT(timed.seconds(recomputed), compute * 1.49);
}

TEST(Internals, ASlowLinkIsWhatTheStepWaitsFor) {
  Timed timed;
  timed.profile.h2d = timed.profile.d2h = 1000 / 2e-3;
  // Every micro-batch of two layers crosses it down, then up: 2 ms each.
  const double link = 16 * 2 * 2 * 2e-3;
  EXPECT_NEAR(timed.seconds(offloaded(timed.workload, 2)), link, link * 0.05);
  // With more slots forward is over while the last saves are still on their way, and the first
  // loads pass them.
  EXPECT_LT(timed.seconds(offloaded(timed.workload, 8)), link - 5 * 2e-3);
}

TEST(InternalsProperty, NoDependencyCanBeLeftOut) {
  RandomCases cases(property_seed());
  LostDependencies dependencies;
  for (int i = 0; i < 40; ++i) {
    const auto [workload, placement] = next_offloaded(cases);
    dependencies.try_each(build_training_step(workload, placement));
  }
  dependencies.expect_all_seen(
      {"save_internals", "load_internals", "spill_internals", "fetch_internals"});
}

TEST(InternalsProperty, PlansAreFreeOfRacesAndFindTheRightContent) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 150; ++i) expect_correct(next_offloaded(cases));
}

}  // namespace
}  // namespace spillway::plan::internals_test
