#include "runtime/plan/placement/saved_activations.hpp"

#include "runtime/plan/placement/boundaries.hpp"

namespace spillway::plan {

bool saved_activations_leave(const Workload& workload, const Placement& placement,
                             std::uint32_t block) {
  const bool head = workload.layer_of(block) == workload.head_layer();
  const Tier home = placement.blocks[block].saved.value_or(Tier::device);
  return !head && home != Tier::device && workload.blocks[block].saved_bytes > Bytes{};
}

Bytes offloaded_saved_activations(const Workload& workload, const Placement& placement) {
  Bytes sum;
  for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
    if (saved_activations_leave(workload, placement, b)) sum += workload.blocks[b].saved_bytes;
  }
  return sum;
}

ActivationTraffic saved_activations_traffic(const Workload& workload, const Placement& placement) {
  const std::uint64_t passes = micro_batches_of_step(workload);
  ActivationTraffic traffic{.saved = offloaded_saved_activations(workload, placement) * passes,
                            .spilled = {}};
  for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
    const bool on_disk = placement.blocks[b].saved == Tier::nvme;
    if (!on_disk || !saved_activations_leave(workload, placement, b)) continue;
    traffic.spilled += in_pages(workload.blocks[b].saved_bytes) * passes;
  }
  return traffic;
}

}  // namespace spillway::plan
