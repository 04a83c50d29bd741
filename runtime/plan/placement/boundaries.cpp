#include "runtime/plan/placement/boundaries.hpp"

namespace spillway::plan {

std::optional<Tier> boundary_home(const Workload& workload, const Placement& placement,
                                  std::uint32_t layer) {
  return boundary_home(placement.blocks[workload.first_block(layer)].output,
                       workload.output_waits(layer));
}

std::optional<Tier> boundary_home(Tier tier, bool waits) {
  if (!waits && tier != Tier::device) return std::nullopt;
  return tier;
}

std::uint32_t device_boundary_slots(const Workload& workload, const Placement& placement) {
  if (placement.boundary_slots == 0) return 0;
  const bool one_at_a_time = placement.order == WorkOrder::micro_batch_major;
  const std::uint32_t under_way = one_at_a_time ? 1 : workload.micro_batches;
  // The parts of a layer share its input and its output, each part after all micro-batches of the
  // one before; and so do the two halves of a backward around a sum over a tensor group.
  const bool shares = workload.operator_tiles || workload.sums_passes();
  return placement.boundary_slots + under_way * (workload.stage.waiting + (shares ? 2 : 1));
}

std::uint32_t layers_with(const Workload& workload, const Placement& placement, Tier home) {
  std::uint32_t count = 0;
  for (std::uint32_t layer = 0; layer < workload.head_layer(); ++layer) {
    count += boundary_home(workload, placement, layer) == home;
  }
  return count;
}

Bytes in_pages(Bytes bytes) { return Bytes{round_up(bytes.value(), kPageBytes)}; }

ActivationTraffic boundary_traffic(const Workload& workload, const Placement& placement) {
  const std::uint64_t passes = micro_batches_of_step(workload);
  const std::uint64_t on_disk = layers_with(workload, placement, Tier::nvme);
  const std::uint64_t off_device = layers_with(workload, placement, Tier::host) + on_disk;
  return {.saved = workload.boundary_bytes * (passes * off_device),
          .spilled = in_pages(workload.boundary_bytes) * (passes * on_disk)};
}

}  // namespace spillway::plan
