// What the ops of a training run must find and leave, told from the model's arithmetic and not from
// the builder: the second telling that a plan's declarations are compared with.
#pragma once

#include <string>

#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

struct RunOf {
  const Workload& workload;
  const Placement& placement;
  bool training = true;     ///< a backward follows: saved activations are saved
  std::uint32_t phase = 0;  ///< of the list (StaleStage::phases)
};

/// Returns nothing, or names the first op that reads or writes other values than its kind, block,
/// round and micro-batch call for, or in another tier than its lane reaches or its placement says.
[[nodiscard]] std::string find_wrong_meaning(const StepPlan& plan, const RunOf& run);

}  // namespace spillway::plan
