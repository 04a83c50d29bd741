// A time that no step of a placement can beat, without a plan of its ops: what each lane has to do,
// summed in closed form. Pure.
#pragma once

#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Returns a bound from below of `simulate(build_training_step(workload, placement),
/// profile).step_seconds`. A lane without a rate counts as instant.
[[nodiscard]] double least_step_seconds(const Workload& workload, const Placement& placement,
                                        const MachineProfile& profile);

}  // namespace spillway::plan
