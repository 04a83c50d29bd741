// Activations off the device, those at the boundaries of layers and those that blocks save: the
// plan against the formulas, and its slots.
#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <utility>

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/saved_activations.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::leaving_activations_test {
namespace {

Placement boundaries_on(const Workload& workload, Tier tier) {
  Placement placement = uniform_placement(workload, {.parameters = Tier::device, .output = tier});
  placement.boundary_slots = 4;
  placement.boundary_staging = 2;
  return placement;
}

Placement saved_activations_on(const Workload& workload, Tier tier) {
  Placement placement = uniform_placement(workload, {.parameters = Tier::device, .saved = tier});
  placement.saved_slots = 2;
  placement.saved_staging = 2;
  return placement;
}

Placement offloaded(const Workload& workload, std::uint32_t slots) {
  Placement placement = saved_activations_on(workload, Tier::host);
  placement.saved_slots = slots;
  return placement;
}

/// What leaves the device.
struct Leaving {
  ValueKind what;
  std::array<std::string_view, 4> copies;  ///< of the ops that move it
  void (RandomCases::*place)(const Workload&, Placement&);
  Placement (*all_on)(const Workload&, Tier);
  std::pair<Bytes, Bytes> (*traffic)(const Workload&, const Placement&);  ///< of link and disk
};

const Leaving kBoundaries{
    .what = ValueKind::boundary,
    .copies = {"save_boundary", "load_boundary", "spill_boundary", "fetch_boundary"},
    .place = &RandomCases::place_boundaries,
    .all_on = boundaries_on,
    .traffic = [](const Workload& workload, const Placement& placement) {
      const ActivationTraffic traffic = boundary_traffic(workload, placement);
      return std::pair(traffic.saved, traffic.spilled);
    }};
const Leaving kSavedActivations{
    .what = ValueKind::saved,
    .copies = {"save_activations", "load_activations", "spill_activations", "fetch_activations"},
    .place = &RandomCases::offload_saved_activations,
    .all_on = saved_activations_on,
    .traffic = [](const Workload& workload, const Placement& placement) {
      const ActivationTraffic traffic = saved_activations_traffic(workload, placement);
      return std::pair(traffic.saved, traffic.spilled);
    }};

void PrintTo(const Leaving& leaving, std::ostream* out) { *out << leaving.copies.front(); }

class Activations : public testing::TestWithParam<Leaving> {
 protected:
  Case next(RandomCases& cases) const {
    Workload w = cases.workload();
    w.micro_batches = static_cast<std::uint32_t>(cases.between(1, 6));
    Placement p = cases.placement(w);
    (cases.*GetParam().place)(w, p);
    return {std::move(w), std::move(p)};
  }
  /// Expects so many bytes each way over the link, and over the disk's.
  void expect_moved(const StepPlan& plan, Bytes link, Bytes disk) const {
    const ValueKind what = GetParam().what;
    EXPECT_EQ(bytes_moved(plan, {what, Tier::device, Tier::host}), link);
    EXPECT_EQ(bytes_moved(plan, {what, Tier::host, Tier::device}), link);
    EXPECT_EQ(bytes_moved(plan, {what, Tier::host, Tier::nvme}), disk);
    EXPECT_EQ(bytes_moved(plan, {what, Tier::nvme, Tier::host}), disk);
  }
};

INSTANTIATE_TEST_SUITE_P(Boundaries, Activations, testing::Values(kBoundaries));
INSTANTIATE_TEST_SUITE_P(Saved, Activations, testing::Values(kSavedActivations));

TEST_P(Activations, MoveWhatTheFormulaSays) {
  RandomCases cases(property_seed());
  int spilled = 0;
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    const auto [workload, placement] = next(cases);
    const auto [link, disk] = GetParam().traffic(workload, placement);
    spilled += disk > Bytes{} ? 1 : 0;
    expect_moved(build_training_step(workload, placement), link, disk);
    expect_moved(build_recorded_step(workload, placement), link, disk);
  }
  EXPECT_GT(spilled, 100);
}

TEST_P(Activations, MoveInTrainingAloneAndOnlyWhatLeaves) {
  Workload workload = small_workload();
  workload.micro_batches = 3;
  for (const Tier tier : kTiers) {
    const Placement placement = GetParam().all_on(workload, tier);
    expect_moved(build_evaluation(workload, placement), {}, {});
    expect_moved(build_flush(workload, placement), {}, {});
    expect_moved(build_snapshot(workload, placement), {}, {});
    const auto [link, disk] = GetParam().traffic(workload, placement);
    EXPECT_EQ(link > Bytes{}, tier != Tier::device);
    EXPECT_EQ(disk > Bytes{}, tier == Tier::nvme);
    expect_moved(build_training_step(workload, placement), link, disk);
  }
}

TEST_P(Activations, NeedEveryDependencyOfTheirPlan) {
  RandomCases cases(property_seed());
  LostDependencies dependencies;
  for (int i = 0; i < 40; ++i) {
    const auto [workload, placement] = next(cases);
    dependencies.try_each(build_training_step(workload, placement));
  }
  const auto& [save, load, spill, fetch] = GetParam().copies;
  dependencies.expect_all_seen({save, load, spill, fetch});
}

TEST_P(Activations, AreFreeOfRacesAndFindTheRightContent) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 150; ++i) expect_correct(next(cases));
}

TEST(Boundaries, PrintTheirWayAsTheGoldenFile) {
  Workload workload = small_workload();
  workload.micro_batches = 2;
  Placement placement = boundaries_on(workload, Tier::host);
  placement.blocks[1].output = Tier::nvme;
  expect_golden("step_off_device_boundaries.txt",
                to_text(build_training_step(workload, placement)));
}

TEST(SavedActivations, PrintTheirWayAsTheGoldenFile) {
  Workload workload = small_workload();
  workload.micro_batches = 3;
  Placement placement = offloaded(workload, 2);
  placement.saved_staging = 0;
  placement.blocks[2].saved = Tier::device;
  expect_golden("step_offloaded_saved_activations.txt",
                to_text(build_training_step(workload, placement)));
}

TEST(Boundaries, CrossTheLinkOnceEachWay) {
  Workload workload = small_workload();
  workload.micro_batches = 5;
  workload.rounds = 2;
  // The embedding's and the first layer's: the second layer's goes to the head alone.
  const Bytes once = workload.boundary_bytes * (5ULL * 2 * 2);
  EXPECT_EQ(boundary_traffic(workload, boundaries_on(workload, Tier::host)).saved, once);
  // Never more than what the papers count of three checkpoints: (5 M - 3) C a round.
  EXPECT_LE(once * 2U, workload.boundary_bytes * (2ULL * (5 * 5 - 3) * 3));
}

TEST(SavedActivations, CrossTheLinkOnceEachWayForEveryMicroBatch) {
  Workload workload = small_workload();
  workload.micro_batches = 5;
  workload.rounds = 2;
  // Two layers of 1000 bytes; the embedding and the head save nothing.
  Placement placement = offloaded(workload, 2);
  EXPECT_EQ(saved_activations_traffic(workload, placement).saved, Bytes{2 * 1000 * 5 * 2});
  EXPECT_EQ(saved_activations_traffic(workload, placement).spilled, Bytes{});
  // On the disk they take whole pages.
  placement.blocks[1].saved = Tier::nvme;
  EXPECT_EQ(saved_activations_traffic(workload, placement).saved, Bytes{2 * 1000 * 5 * 2});
  EXPECT_EQ(saved_activations_traffic(workload, placement).spilled, Bytes{4096 * 5 * 2});
}

TEST(Boundaries, TheLastStagesOfAStepUseEverySlot) {
  Workload workload = small_workload();
  workload.micro_batches = 8;
  const Placement placement = boundaries_on(workload, Tier::host);
  std::map<std::uint32_t, int> used;
  const StepPlan plan = build_training_step(workload, placement);
  for (const Op& op : plan.ops) {
    if (is_copy(op, kLoadBoundary)) ++used[written_by(plan, op).first];
  }
  EXPECT_EQ(device_boundary_slots(workload, placement), 12U);
  EXPECT_GE(used.size(), 4U);
  for (const auto& [slot, times] : used) EXPECT_LT(slot, 12U);
}

TEST(SavedActivations, UseTheirSlotsInTurnAndRecomputeNothing) {
  Workload workload = small_workload();
  workload.micro_batches = 4;
  std::map<std::uint32_t, int> used;
  const StepPlan plan = build_training_step(workload, offloaded(workload, 3));
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::backward) {
      EXPECT_EQ(op.flops, workload.blocks[op.block].backward_flops);
    }
    for (const auto slot : used_of(plan, op, PoolKind::saved_activation_slots)) ++used[slot];
  }
  // Two layers of four micro-batches take a slot for forward and save, and for load and backward:
  // 16 times, in turn.
  EXPECT_EQ(used, (std::map<std::uint32_t, int>{{0, 2 * 6}, {1, 2 * 5}, {2, 2 * 5}}));
}

/// Passes of 1 ms each, forward and back, of 16 micro-batches; of what else a step does, only its
/// copies over the link take time.
struct Timed {
  Workload workload = small_workload();
  MachineProfile profile;
  Timed() {
    workload.micro_batches = 16;
    for (BlockShape& block : workload.blocks) block.forward_flops = block.backward_flops = 1e6;
    profile.gpu_flops = 1e9;
  }
  /// State on the device: nothing else crosses the link, which takes so long for `bytes`.
  [[nodiscard]] double seconds(Placement placement, Bytes bytes, double copy_seconds) {
    profile.h2d = profile.d2h = static_cast<double>(bytes.value()) / copy_seconds;
    for (BlockCut& block : placement.blocks) block.state = block.gradients = Tier::device;
    return simulate(build_training_step(workload, placement), profile).step_seconds;
  }
};

TEST(Boundaries, TwoSlotsHideALinkThatKeepsUp) {
  Timed timed;
  const auto seconds = [&](std::uint32_t slots, double copy_seconds) {
    Placement placement = boundaries_on(timed.workload, Tier::host);
    for (BlockCut& block : placement.blocks) block.saved = Tier::device;
    placement.boundary_slots = slots;
    return timed.seconds(placement, timed.workload.boundary_bytes, copy_seconds);
  };
  // 3 passes forward, the head's, which are one op of 2 ms, and 3 back.
  const double compute = 16 * (3 + 2 + 3) * 1e-3;
  EXPECT_LT(seconds(2, 0.4e-3), compute * 1.02);
  EXPECT_LT(seconds(4, 0.4e-3), compute * 1.02);
  EXPECT_GT(seconds(4, 4e-3), compute * 1.1) << "four times slower than the passes";
}

/// As above, where only the layers, which save 1000 bytes, take time.
struct TimedLayers : Timed {
  TimedLayers() {
    for (const std::size_t end : {0U, 3U}) {
      workload.blocks[end].forward_flops = workload.blocks[end].backward_flops = 0;
    }
  }
  double seconds(const Placement& placement, double copy_seconds) {
    return Timed::seconds(placement, 1000_B, copy_seconds);
  }
};

TEST(SavedActivations, TwoSlotsHideALinkThatKeepsUp) {
  TimedLayers timed;
  const double compute = 16 * 2 * 2 * 1e-3;
  // Not hidden: the last save, which the first load waits for, and that load, 0.8 ms each.
  EXPECT_LT(timed.seconds(offloaded(timed.workload, 2), 0.8e-3), compute + 1.7e-3);
  // Recomputation adds a forward to every backward.
  const Placement recomputed = uniform_placement(timed.workload, {.parameters = Tier::device});
  EXPECT_GT(timed.seconds(recomputed, 0.8e-3), compute * 1.49);
}

TEST(SavedActivations, ASlowLinkIsWhatTheStepWaitsFor) {
  TimedLayers timed;
  // Every micro-batch of two layers crosses it down, then up: 2 ms each.
  const double link = 16 * 2 * 2 * 2e-3;
  EXPECT_NEAR(timed.seconds(offloaded(timed.workload, 2), 2e-3), link, link * 0.05);
  // With more slots forward is over while the last saves are still on their way, and the first
  // loads pass them.
  EXPECT_LT(timed.seconds(offloaded(timed.workload, 8), 2e-3), link - 5 * 2e-3);
}

}  // namespace
}  // namespace spillway::plan::leaving_activations_test
