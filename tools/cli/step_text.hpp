// The operations of a step for people: block by block. Pure.
#pragma once

#include <string>

#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::cli {

/// Lists the operations of each block below its name, in the order of the step, whose numbers they
/// keep; a commit, which is of no block, comes last.
[[nodiscard]] std::string text_by_block(const plan::StepPlan& step, const plan::Workload& workload);

}  // namespace spillway::cli
