// Boundaries that leave the device: the plan against the formulas, and its slots.
#include "runtime/plan/placement/boundaries.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>

#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"
#include "tests/plan/theory.hpp"

namespace spillway::plan::boundaries_test {
namespace {

constexpr std::initializer_list<Copy> kMoves = {kSaveActivation, kLoadActivation, kSpillActivation,
                                                kFetchActivation};

Case next_off_device(RandomCases& cases) {
  Workload w = cases.workload();
  w.micro_batches = static_cast<std::uint32_t>(cases.between(1, 6));
  Placement p = cases.placement(w);
  cases.place_boundaries(w, p);
  return {std::move(w), std::move(p)};
}

Placement off_device(const Workload& workload, Tier tier) {
  Placement placement = uniform_placement(workload, {.parameters = Tier::device, .output = tier});
  placement.boundary_slots = 4;
  placement.boundary_staging = 2;
  return placement;
}

TEST(Boundaries, PrintTheirWayAsTheGoldenFile) {
  Workload workload = small_workload();
  workload.micro_batches = 2;
  Placement placement = off_device(workload, Tier::host);
  placement.blocks[1].output = Tier::nvme;
  expect_golden("step_off_device_boundaries.txt",
                to_text(build_training_step(workload, placement)));
}

TEST(BoundariesProperty, MoveWhatTheFormulaSays) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 500; ++i) {
    const auto [workload, placement] = next_off_device(cases);
    const StepPlan plan = build_training_step(workload, placement);
    const BoundaryTraffic traffic = boundary_traffic(workload, placement);
    EXPECT_EQ(bytes_moved(plan, kSaveActivation), traffic.saved) << "case " << i;
    EXPECT_EQ(bytes_moved(plan, kLoadActivation), traffic.saved) << "case " << i;
    EXPECT_EQ(bytes_moved(plan, kSpillActivation), traffic.spilled) << "case " << i;
    EXPECT_EQ(bytes_moved(plan, kFetchActivation), traffic.spilled) << "case " << i;
  }
}

TEST(Boundaries, MoveNothingWhereEverythingStaysOnTheDevice) {
  Workload workload = small_workload();
  workload.micro_batches = 3;
  const Placement placement = uniform_placement(workload, {.parameters = Tier::device});
  const StepPlan plan = build_training_step(workload, placement);
  for (const Copy& kind : kMoves) EXPECT_EQ(bytes_moved(plan, kind), Bytes{});
}

TEST(Boundaries, CrossTheLinkOnceEachWay) {
  Workload workload = small_workload();
  workload.micro_batches = 5;
  workload.rounds = 2;
  const Placement placement = off_device(workload, Tier::host);
  const StepPlan plan = build_training_step(workload, placement);
  // The embedding's and the first layer's: the second layer's goes to the head alone.
  const Bytes once = workload.boundary_bytes * (5ULL * 2 * 2);
  EXPECT_EQ(bytes_moved(plan, kSaveActivation), once);
  EXPECT_EQ(bytes_moved(plan, kLoadActivation), once);
  // Never more than what the papers count: every boundary down and up again.
  const LinkWork work{.micro_batches = 5, .rounds = 2, .checkpoint = workload.boundary_bytes * 3U};
  EXPECT_LE(once * 2U, link_volume(Schedule::layer_major, work).activations);
}

TEST(Boundaries, AnEvaluationMovesNone) {
  Workload workload = small_workload();
  workload.micro_batches = 3;
  for (const Tier tier : {Tier::host, Tier::nvme}) {
    const StepPlan plan = build_evaluation(workload, off_device(workload, tier));
    for (const Copy& kind : kMoves) EXPECT_EQ(bytes_moved(plan, kind), Bytes{});
  }
}

TEST(Boundaries, TheLastStagesOfAStepUseEverySlot) {
  Workload workload = small_workload();
  workload.micro_batches = 8;
  const Placement placement = off_device(workload, Tier::host);
  std::map<std::uint32_t, int> used;
  const StepPlan plan = build_training_step(workload, placement);
  for (const Op& op : plan.ops) {
    if (is_copy(op, kLoadActivation)) ++used[written_by(plan, op).first];
  }
  EXPECT_EQ(device_boundary_slots(workload, placement), 12U);
  EXPECT_GE(used.size(), 4U);
  for (const auto& [slot, times] : used) EXPECT_LT(slot, 12U);
}

TEST(Boundaries, TwoSlotsHideALinkThatKeepsUp) {
  Workload workload = small_workload();
  workload.micro_batches = 16;
  for (BlockShape& block : workload.blocks) block.forward_flops = block.backward_flops = 1e6;
  MachineProfile profile;
  profile.gpu_flops = 1e9;  // 1 ms a pass
  profile.update = 1e18;
  const auto seconds = [&](std::uint32_t slots, double copy_seconds) {
    profile.h2d = profile.d2h = static_cast<double>(workload.boundary_bytes.value()) / copy_seconds;
    Placement placement = off_device(workload, Tier::host);
    for (BlockCut& block : placement.blocks) {
      block.state = block.gradients = Tier::device;
      block.saved = Tier::device;
    }
    placement.boundary_slots = slots;
    return simulate(build_training_step(workload, placement), profile).step_seconds;
  };
  // 16 micro-batches: 3 passes forward, the head's, which are one op of 2 ms, and 3 back.
  const double compute = 16 * (3 + 2 + 3) * 1e-3;
  EXPECT_LT(seconds(2, 0.4e-3), compute * 1.02);
  EXPECT_LT(seconds(4, 0.4e-3), compute * 1.02);
  EXPECT_GT(seconds(4, 4e-3), compute * 1.1) << "four times slower than the passes";
}

TEST(BoundariesProperty, NoDependencyCanBeLeftOut) {
  RandomCases cases(property_seed());
  LostDependencies dependencies;
  for (int i = 0; i < 40; ++i) {
    const auto [workload, placement] = next_off_device(cases);
    dependencies.try_each(build_training_step(workload, placement));
  }
  dependencies.expect_all_seen(
      {"save_activation", "load_activation", "spill_activation", "fetch_activation"});
}

TEST(BoundariesProperty, PlansAreFreeOfRacesAndFindTheRightContent) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 150; ++i) expect_correct(next_off_device(cases));
}

}  // namespace
}  // namespace spillway::plan::boundaries_test
