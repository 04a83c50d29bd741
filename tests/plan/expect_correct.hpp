// Every plan of a case, in all circumstances, through both questions of plan_checker.hpp.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <vector>

#include "runtime/plan/step_builder.hpp"
#include "tests/plan/plan_checker.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan {

/// All runs that a case can have.
inline void expect_correct(const Case& c) {
  const StepPlan training = build_training_step(c.workload, c.placement);
  const StepPlan recorded = build_recorded_step(c.workload, c.placement);
  const StepPlan flush = build_flush(c.workload, c.placement);
  for (const auto& [pending, warm] :
       {std::pair(true, true), {true, false}, {false, true}, {false, false}}) {
    const RunOf run{
        .workload = c.workload, .placement = c.placement, .pending = pending, .warm = warm};
    for (const StepPlan* plan : {&training, &recorded, &flush}) {
      ASSERT_EQ(find_race(*plan, run), "") << to_text(*plan);
      ASSERT_EQ(find_wrong_content(*plan, run), "") << to_text(*plan);
    }
  }
  const RunOf rest{
      .workload = c.workload, .placement = c.placement, .training = false, .pending = false};
  for (const StepPlan& plan :
       {build_evaluation(c.workload, c.placement), build_snapshot(c.workload, c.placement)}) {
    ASSERT_EQ(find_race(plan, rest), "") << to_text(plan);
    ASSERT_EQ(find_wrong_content(plan, rest), "") << to_text(plan);
  }
}

/// Dependencies that were taken away, one at a time, and how often the race checker noticed.
struct LostDependencies {
  std::map<OpKind, int> lost, seen;

  /// Of the ops of a training step that `selects` chooses.
  template <class Selects>
  void try_each(const Case& c, const Selects& selects) {
    const StepPlan plan = build_training_step(c.workload, c.placement);
    const RunOf run{.workload = c.workload, .placement = c.placement};
    for (OpIndex i = 0; i < plan.ops.size(); ++i) {
      const Op& op = plan.ops[i];
      if (!selects(op)) continue;
      for (std::uint32_t d = 0; d < op.dependency_count; ++d) {
        StepPlan broken = plan;
        std::vector<OpIndex>& all = broken.dependencies;
        // In its place a dependency that the op has anyway, or none.
        all[op.first_dependency + d] = all[op.first_dependency];
        if (d == 0) {
          ++broken.ops[i].first_dependency;
          --broken.ops[i].dependency_count;
        }
        ++lost[op.kind];
        if (!find_race(broken, run).empty()) ++seen[op.kind];
      }
    }
  }

  /// A loss that no other order replaces must be seen, or the checker proves nothing.
  void expect_seen(std::initializer_list<OpKind> kinds) {
    for (const OpKind kind : kinds) {
      EXPECT_GT(seen[kind], 0) << name_of(kind) << ": none of " << lost[kind] << " seen";
    }
  }
};

}  // namespace spillway::plan
