// Every plan of a case, in all circumstances, through both questions of plan_checker.hpp.
#pragma once

#include <gtest/gtest.h>

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

}  // namespace spillway::plan
