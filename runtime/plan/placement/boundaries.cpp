#include "runtime/plan/placement/boundaries.hpp"

#include <algorithm>

namespace spillway::plan {
namespace {

std::uint32_t head_of(const Placement& placement) {
  return static_cast<std::uint32_t>(placement.blocks.size() - 1);
}

}  // namespace

BoundaryHome activation_home(const Placement& placement, std::uint32_t block) {
  return activation_home(placement.blocks[block].output, block + 1 == head_of(placement));
}

BoundaryHome activation_home(Tier tier, bool last) {
  if (tier == Tier::device) return BoundaryHome::device;
  if (last) return BoundaryHome::parking;  // none waits for a backward
  return tier == Tier::host ? BoundaryHome::host : BoundaryHome::nvme;
}

bool is_parked(const Placement& placement, std::uint32_t micro_batch) {
  // Micro-batch-major order has one boundary under way at a time: it never waits for others.
  return placement.boundary_slots > 0 && placement.order == WorkOrder::layer_major &&
         micro_batch >= placement.carried;
}

std::uint32_t parked_micro_batches(const Workload& workload, const Placement& placement) {
  if (!is_parked(placement, placement.carried)) return 0;
  return workload.micro_batches - std::min(workload.micro_batches, placement.carried);
}

std::uint32_t device_boundary_slots(const Workload& workload, const Placement& placement) {
  if (placement.boundary_slots == 0) return 0;
  const bool one_at_a_time = placement.order == WorkOrder::micro_batch_major;
  return placement.boundary_slots +
         (one_at_a_time ? 1 : workload.micro_batches - parked_micro_batches(workload, placement));
}

std::uint32_t blocks_with(const Placement& placement, BoundaryHome home) {
  std::uint32_t count = 0;
  for (std::uint32_t b = 0; b < head_of(placement); ++b) {
    count += activation_home(placement, b) == home;
  }
  return count;
}

Bytes boundary_disk_bytes(const Workload& workload) {
  return Bytes{round_up(workload.boundary_bytes.value(), kPageBytes)};
}

BoundaryTraffic boundary_traffic(const Workload& workload, const Placement& placement) {
  const std::uint64_t rounds = workload.rounds;
  const std::uint64_t all = workload.micro_batches;
  const std::uint64_t parked = parked_micro_batches(workload, placement);
  const std::uint64_t on_disk = blocks_with(placement, BoundaryHome::nvme);
  const std::uint64_t off_device = blocks_with(placement, BoundaryHome::host) + on_disk;
  const std::uint64_t passing =
      parked * (blocks_with(placement, BoundaryHome::parking) + head_of(placement));
  const Bytes one = workload.boundary_bytes * rounds;
  const Bytes pages = boundary_disk_bytes(workload) * rounds;
  return {.saved = one * (all * off_device + passing),
          .loaded = one * ((all + parked) * off_device + passing),
          .spilled = pages * (all * on_disk),
          .fetched = pages * ((all + parked) * on_disk)};
}

}  // namespace spillway::plan
