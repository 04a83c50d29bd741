// Steps whose last blocks are updated ahead of the decision about their update, and how many are.
#include "runtime/plan/search/speculation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::speculation_test {
namespace {

constexpr BlockCut kOnDisk{.state = Tier::nvme};

Placement on_disk(const Workload& workload, std::uint32_t speculative_blocks) {
  Placement placement = uniform_placement(workload, kOnDisk);
  placement.speculative_blocks = speculative_blocks;
  return placement;
}

/// Whether `later` waits for `earlier`, directly or through others.
bool waits_for(const StepPlan& plan, OpIndex later, OpIndex earlier) {
  return std::ranges::any_of(plan.dependencies_of(plan.ops[later]), [&](OpIndex on) {
    return on == earlier || (on > earlier && waits_for(plan, on, earlier));
  });
}

TEST(SpeculationList, PrintsAsTheGoldenFile) {
  const Workload workload = small_workload();
  expect_golden("step_speculative.txt",
                to_text(build_training_step(workload, on_disk(workload, 2))));
}

TEST(SpeculationList, IsWithoutSpeculationThatOfAPlacementThatHasNone) {
  const Workload workload = small_workload();
  Placement placement = on_disk(workload, 1);
  placement.state_slots = 1;  // reads ahead are then the same
  Placement none = placement;
  none.speculative_blocks = 0;
  EXPECT_EQ(to_text(build_training_step(workload, placement, {.speculation = kNothingAhead})),
            to_text(build_training_step(workload, none)));
  EXPECT_EQ(to_text(build_flush(workload, placement)), to_text(build_flush(workload, none)));
}

TEST(SpeculationList, WritesAheadOnlyOnceTheCommitIsDurable) {
  const Workload workload = small_workload();
  const StepPlan plan = build_training_step(workload, on_disk(workload, 4));
  const auto commit = static_cast<OpIndex>(std::ranges::find(plan.ops, OpKind::commit, &Op::kind) -
                                           plan.ops.begin());
  ASSERT_LT(commit, plan.ops.size());
  std::size_t writes = 0;
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    if (!plan.ops[i].speculative || !is_copy(plan.ops[i], kWriteState)) continue;
    ++writes;
    EXPECT_GT(i, commit);
    EXPECT_TRUE(waits_for(plan, i, commit)) << "op " << i << "\n" << to_text(plan);
  }
  EXPECT_EQ(writes, make_tiles(workload, ElementCount{2 * kLeafParameters}, 0).size());
}

TEST(SpeculationListProperty, IsFreeOfRacesAndFindsTheRightContent) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 600; ++i) {
    expect_correct(cases.next_speculative());
    if (testing::Test::HasFatalFailure()) FAIL() << "case " << i;
  }
}

TEST(SpeculationListProperty, UpdatesEveryTileOnceAStep) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 300; ++i) {
    const auto [workload, placement] = cases.next_speculative();
    const std::vector<Tile> tiles = make_tiles(workload, placement.tile_parameters, 0);
    const std::size_t first = workload.blocks.size() - placement.speculative_blocks;
    std::map<std::pair<std::uint32_t, bool>, int> updates;
    for (const Op& op : build_training_step(workload, placement).ops) {
      if (op.kind == OpKind::update) ++updates[{op.tile, op.speculative}];
    }
    for (std::uint32_t tile = 0; tile < tiles.size(); ++tile) {
      const bool ahead = tiles[tile].block >= first;
      EXPECT_EQ((updates[{tile, true}]), ahead ? 1 : 0);
      EXPECT_EQ((updates[{tile, false}]), ahead ? 0 : 1);
    }
  }
}

TEST(SpeculationListProperty, NoDependencyAndNoDeclarationCanBeLeftOut) {
  RandomCases cases(property_seed());
  LostDependencies dependencies;
  for (int i = 0; i < 60; ++i) {
    const Case c = cases.next_speculative();
    for (const bool found : {false, true}) {
      const StepPlan plan = build_training_step(c.workload, c.placement,
                                                {.speculation = {.found = found, .made = true}});
      dependencies.try_each(plan);
      if (i < 10) expect_lost_accesses_seen(c, plan, /*training=*/true);
    }
  }
  dependencies.expect_all_seen({"read_state", "write_state", "update", "commit"});
}

/// A machine whose disk is busy for as long as forward and backward, and idle in backward.
MachineProfile slow_disk(const Workload& workload, const Placement& placement) {
  MachineProfile profile{.gpu_flops = 1e9,
                         .h2d = 1e12,
                         .d2h = 1e12,
                         .update = 1e12,
                         .nvme_read = 1e9,
                         .nvme_write = 1e9,
                         .op_overhead_seconds = 1e-9};
  profile.nvme_combined = 2e9;
  const StepPlan plan = build_training_step(workload, placement);
  double flops = 0;
  for (const Op& op : plan.ops) flops += op.flops;
  const auto bytes = static_cast<double>(bytes_moved(plan, kReadState).value());
  profile.gpu_flops = flops / (bytes / profile.nvme_read);
  return profile;
}

Workload many_layers() {
  Workload workload = small_workload();
  const BlockShape layer = workload.blocks[1];
  workload.blocks.insert(workload.blocks.begin() + 1, 13, layer);
  return workload;
}

TEST(SpeculationSearch, ShortensAStepWhoseDiskIsIdleInBackward) {
  const Workload workload = many_layers();
  const Placement placement = on_disk(workload, 0);
  const MachineProfile profile = slow_disk(workload, placement);
  PlannedStep step{placement, simulate(build_training_step(workload, placement), profile)};
  const double before = step.prediction.step_seconds;
  speculate(workload, profile, step);
  EXPECT_GT(step.placement.speculative_blocks, 0U);
  EXPECT_LT(step.prediction.step_seconds, 0.85 * before);
  EXPECT_EQ(step.prediction.step_seconds,
            simulate(build_training_step(workload, step.placement), profile).step_seconds);
}

TEST(SpeculationSearch, LeavesAStepWhoseDiskIsFastAndOneOfSeveralRanksAsTheyAre) {
  Workload workload = many_layers();
  Placement placement = on_disk(workload, 0);
  MachineProfile profile = slow_disk(workload, placement);
  profile.nvme_read = profile.nvme_write = profile.nvme_combined = 1e15;
  PlannedStep step{placement, simulate(build_training_step(workload, placement), profile)};
  speculate(workload, profile, step);
  EXPECT_EQ(step.placement, placement);

  profile = slow_disk(workload, placement);
  profile.net = 1e12;
  workload.replicas.count = 2;
  placement.parameter_slots = 2;
  for (BlockCut& cut : placement.blocks) cut.parameters = Tier::device;
  step = {placement, simulate(build_training_step(workload, placement), profile)};
  speculate(workload, profile, step);
  EXPECT_EQ(step.placement, placement);
}

}  // namespace
}  // namespace spillway::plan::speculation_test
