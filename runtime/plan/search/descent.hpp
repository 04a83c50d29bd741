// Descent: makes a step shorter by other cuts of some of its blocks, for as long as that helps.
// Pure.
#pragma once

#include <cstddef>

#include "runtime/plan/search/fastest.hpp"

namespace spillway::plan::detail {

/// What a placement is made better for.
struct DescentRequest {
  const Workload& workload;  ///< of one rank, of whole layers
  const Budgets& budgets;
  const PlacementRequest& request;
  const MachineProfile& profile;
  std::size_t ops = 0;  ///< that it may simulate
};

/// Returns `from`, or a placement with a shorter step. Blocks that are alike move together, some or
/// all of them, the first, the last or spread among the others; and where no such move helps, two
/// of them, so that one makes room for the other. What cannot be shorter is not simulated. No block
/// uses the disk unless `from` does.
[[nodiscard]] PlannedStep descend(const DescentRequest& question, PlannedStep from);

}  // namespace spillway::plan::detail
