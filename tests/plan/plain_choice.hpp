// The choice of a placement without any shortcut: every way to spread boundaries, one block at a
// time, all memory counted anew at each. What the product's search must find in less time.
#pragma once

#include <variant>

#include "runtime/plan/placement/choose.hpp"
#include "runtime/plan/placement/fastest.hpp"

namespace spillway::plan {

[[nodiscard]] std::variant<Placement, Shortage> plain_choice(const Workload& workload,
                                                             const Budgets& budgets,
                                                             const PlacementRequest& request);

/// Every placement that there is to try, chosen so and simulated.
[[nodiscard]] PlannedStep plain_fastest(const Workload& workload, const Budgets& budgets,
                                        const PlacementRequest& request,
                                        const MachineProfile& profile, const Placement& first);

}  // namespace spillway::plan
