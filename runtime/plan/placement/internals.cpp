#include "runtime/plan/placement/internals.hpp"

namespace spillway::plan {

bool internals_leave(const Workload& workload, const Placement& placement, std::uint32_t block) {
  const bool head = block + 1 == workload.blocks.size();
  return !head && placement.blocks[block].saved == Tier::host &&
         workload.blocks[block].saved_bytes > Bytes{};
}

Bytes offloaded_internals(const Workload& workload, const Placement& placement) {
  Bytes sum;
  for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
    if (internals_leave(workload, placement, b)) sum += workload.blocks[b].saved_bytes;
  }
  return sum;
}

Bytes internals_traffic(const Workload& workload, const Placement& placement) {
  const std::uint64_t passes = std::uint64_t{workload.rounds} * workload.micro_batches;
  return offloaded_internals(workload, placement) * passes;
}

}  // namespace spillway::plan
