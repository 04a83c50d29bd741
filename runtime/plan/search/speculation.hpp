// Search for the number of blocks that a step updates ahead of the decision about its update. Pure.
#pragma once

#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/search/fastest.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Gives the placement of `step` the speculative blocks with which its step is shortest, if that is
/// worthwhile (kWorthwhile), and the prediction of that step: one behind steps that were neither
/// clipped nor skipped. No effect where a placement may have none. Throws
/// `Error{invalid_argument}` for a rate that the profile lacks.
void speculate(const Workload& workload, const MachineProfile& profile, PlannedStep& step);

}  // namespace spillway::plan
