// Every plan of a case through the checks of a plan and the second telling of op_meaning.hpp.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string_view>
#include <vector>

#include "runtime/plan/step/check.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/op_meaning.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan {

/// Whether an op of d2h depends on one of h2d directly. What was copied up is used on the device
/// before anything that comes of it is copied down, so that no such dependency is ever needed, but
/// where a stage takes away what it has received: to where what was copied up before has been.
inline bool download_waits_for_upload(const StepPlan& plan) {
  const auto depends = [&](const Op& op, const auto& holds) {
    return std::ranges::any_of(plan.dependencies_of(op),
                               [&](OpIndex on) { return holds(plan.ops[on]); });
  };
  return std::ranges::any_of(plan.ops, [&](const Op& op) {
    return op.lane == Lane::d2h && depends(op, [](const Op& on) { return on.lane == Lane::h2d; }) &&
           !depends(op, [](const Op& on) { return on.kind == OpKind::receive; });
  });
}

/// Returns all plans of a case.
inline std::vector<StepPlan> plans_of(const Case& c, WhichList which) {
  which.speculation = kNothingAhead;
  std::vector<StepPlan> plans{build_training_step(c.workload, c.placement, which),
                              build_recorded_step(c.workload, c.placement, which),
                              build_flush(c.workload, c.placement, which),
                              build_evaluation(c.workload, c.placement, which),
                              build_snapshot(c.workload, c.placement)};
  if (c.placement.speculative_blocks == 0) return plans;
  for (const bool found : {false, true}) {
    for (const bool made : {false, true}) {
      which.speculation = {.found = found, .made = made};
      plans.push_back(build_training_step(c.workload, c.placement, which));
    }
  }
  plans.push_back(build_flush(c.workload, c.placement, which));
  return plans;
}

/// Checks all plans of a case.
inline void expect_correct(const Case& c, const WhichList& which = {}) {
  for (const StepPlan& plan : plans_of(c, which)) {
    // A stage may have the head alone, whose backward is its loss.
    const auto finishes = [](const Op& op) { return op.kind == OpKind::round_gradient; };
    const bool training = std::ranges::any_of(plan.ops, finishes);
    ASSERT_EQ(find_race(plan), "") << to_text(plan);
    ASSERT_EQ(find_wrong_content(plan), "") << to_text(plan);
    ASSERT_EQ(find_wrong_meaning(plan, {c.workload, c.placement, training, which.phase}), "")
        << to_text(plan);
    ASSERT_FALSE(download_waits_for_upload(plan)) << to_text(plan);
  }
}

/// Dependencies that were taken away, one at a time, and how often the race check noticed.
struct LostDependencies {
  std::map<std::string_view, int> lost, seen;  ///< by the op's name

  void try_each(const StepPlan& plan) {
    for (OpIndex i = 0; i < plan.ops.size(); ++i) {
      const Op& op = plan.ops[i];
      for (std::uint32_t d = 0; d < op.dependency_count; ++d) {
        StepPlan broken = plan;
        const auto first = broken.dependencies.begin() + op.first_dependency;
        std::swap(*first, *(first + d));
        ++broken.ops[i].first_dependency;
        --broken.ops[i].dependency_count;
        ++lost[name_of(op)];
        if (!find_race(broken).empty()) ++seen[name_of(op)];
      }
    }
  }
  /// None is superfluous: without any of them something races.
  void expect_all_seen(std::initializer_list<std::string_view> names) {
    EXPECT_EQ(seen, lost);
    for (const std::string_view name : names) EXPECT_GT(lost[name], 0) << name;
  }
};

/// Declared reads and writes that were taken away, one at a time: each must be noticed.
inline void expect_lost_accesses_seen(const Case& c, const StepPlan& plan, bool training) {
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    for (std::uint32_t a = 0; a < op.access_count; ++a) {
      StepPlan broken = plan;
      const auto first = broken.accesses.begin() + op.first_access;
      std::swap(*first, *(first + a));
      ++broken.ops[i].first_access;
      --broken.ops[i].access_count;
      const Access& lost = plan.accesses_of(op)[a];
      ASSERT_NE(find_wrong_meaning(broken, {c.workload, c.placement, training}), "")
          << "op " << i << " without " << (lost.writes ? "writing " : "reading ")
          << to_text(lost.buffer) << "\n"
          << to_text(plan);
    }
  }
}

}  // namespace spillway::plan
