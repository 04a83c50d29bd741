// Plans whose passes do not wait for the update of the step before.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/plan/pipeline/stale.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::delayed_update_test {
namespace {

Workload delayed(Workload workload) {
  workload.stale = delayed_updates(workload.rounds);
  return workload;
}

TEST(DelayedPlans, AreFreeOfRacesAndFindTheRightWeights) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 500; ++i) {
    const auto [workload, placement] = cases.next();
    expect_correct({delayed(workload), placement});
    if (testing::Test::HasFatalFailure()) FAIL() << "case " << i;
  }
}

TEST(DelayedPlans, HaveNoDependencyTooMany) {
  RandomCases cases(property_seed());
  LostDependencies dependencies;
  for (int i = 0; i < 60; ++i) {
    const auto [workload, placement] = cases.next();
    dependencies.try_each(build_training_step(delayed(workload), placement));
  }
  dependencies.expect_all_seen({"update", "forward", "backward"});
}

/// By op: whether it waits for an update of the plan, or for what waits for one.
std::vector<bool> waits_for_updates(const StepPlan& plan) {
  std::vector<bool> waits(plan.ops.size());
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    for (const OpIndex on : plan.dependencies_of(plan.ops[i])) {
      if (waits[on] || plan.ops[on].kind == OpKind::update) waits[i] = true;
    }
  }
  return waits;
}

// A gradient does: its home is free once the update has read the last one.
TEST(DelayedPlans, RunForwardBesideTheUpdatesOfTheHost) {
  for (const Tier parameters : {Tier::host, Tier::device}) {
    Workload workload = small_workload();
    const Placement placement = uniform_placement(workload, {.parameters = parameters});
    const auto forward_waits = [&](const Workload& of) {
      const StepPlan plan = build_training_step(of, placement);
      const std::vector<bool> waits = waits_for_updates(plan);
      bool any = false;
      for (OpIndex i = 0; i < plan.ops.size(); ++i) {
        const OpKind kind = plan.ops[i].kind;
        any |= waits[i] && (kind == OpKind::forward || kind == OpKind::loss);
      }
      return any;
    };
    EXPECT_TRUE(forward_waits(workload));
    EXPECT_FALSE(forward_waits(delayed(workload)));
  }
}

TEST(DelayedPlans, HaveTheirOlderWeightsInTheMemoryTable) {
  const Workload workload = small_workload();
  Placement placement = uniform_placement(workload, {});
  for (const bool commits : {false, true}) {
    placement.commits = commits;
    const auto bytes = [&](const Workload& of, PoolKind pool) {
      return make_pools(of, placement)[static_cast<std::size_t>(pool)].bytes();
    };
    const Bytes once = bytes(workload, PoolKind::host_parameters);
    for (std::size_t p = 0; p < kPoolCount; ++p) {
      const auto pool = static_cast<PoolKind>(p);
      // Tiles of fp32 are whole pages, and the disk has two slots.
      const Bytes more = pool == PoolKind::host_stash              ? once
                         : pool == PoolKind::disk_state && commits ? once * 2U
                                                                   : Bytes{};
      EXPECT_EQ(bytes(delayed(workload), pool), bytes(workload, pool) + more) << name_of(pool);
    }
  }
}

}  // namespace
}  // namespace spillway::plan::delayed_update_test
