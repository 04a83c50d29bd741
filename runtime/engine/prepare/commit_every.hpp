// How often a run commits, where its options leave that to the plan. Any thread.
#pragma once

#include <cstdint>

#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Returns the steps between commits, so that writing the state that lives in memory takes a
/// twentieth of their time; 1 if all state is on disk, or if the profile has no disk.
[[nodiscard]] std::uint64_t planned_commit_every(const plan::Workload& workload,
                                                 const plan::Placement& placement,
                                                 const plan::MachineProfile& profile,
                                                 double step_seconds);

}  // namespace spillway::engine
