// Boundaries: the tensors between blocks, [T, W] a micro-batch, activations on the way forward and
// their gradients on the way back; where they live and what moving them costs. Pure.
//
// With `Placement::boundary_slots` 0 every one has device memory of its own. Otherwise activations
// of blocks that are placed off the device, and all gradients, pass through shared device slots:
//
// - An activation that leaves the device is saved once, as soon as it is computed, and comes back
//   for the backward of the block that read it. The last block's is only read by the head.
// - What passes from one block's visit to the next (the newest activation, then its gradient) stays
//   in a slot for the first `Placement::carried` micro-batches. Of the others, the *parked* ones,
//   it waits off the device: activations in their homes, gradients and the last block's activations
//   in host memory, one place a micro-batch.
#pragma once

#include <cstdint>

#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Where a boundary waits that is not on the device.
enum class BoundaryHome : std::uint8_t {
  device,  ///< memory of its own, always
  host,
  nvme,
  parking,  ///< host memory that it shares with other boundaries of its micro-batch
};

[[nodiscard]] BoundaryHome activation_home(const Placement& placement, std::uint32_t block);
/// The same of a block whose activations are placed in `tier`; `last`: only the head reads them.
[[nodiscard]] BoundaryHome activation_home(Tier tier, bool last);
/// Whether the boundaries that pass from block to block leave the device in between.
[[nodiscard]] bool is_parked(const Placement& placement, std::uint32_t micro_batch);
[[nodiscard]] std::uint32_t parked_micro_batches(const Workload& workload,
                                                 const Placement& placement);
/// Device slots in all: those that `boundary_slots` names and those that carried boundaries hold.
[[nodiscard]] std::uint32_t device_boundary_slots(const Workload& workload,
                                                  const Placement& placement);
/// Blocks whose activations have this home.
[[nodiscard]] std::uint32_t blocks_with(const Placement& placement, BoundaryHome home);
/// Counts the bytes of one boundary on disk and in its staging buffer: whole pages.
[[nodiscard]] Bytes boundary_disk_bytes(const Workload& workload);

/// Bytes of boundaries that a training step moves.
struct BoundaryTraffic {
  Bytes saved;    ///< device to host
  Bytes loaded;   ///< host to device
  Bytes spilled;  ///< host to disk
  Bytes fetched;  ///< disk to host
};
/// With U the bytes of one boundary, M micro-batches of which P are parked, R rounds, H blocks
/// before the head, of which h + d place activations on the host and on disk, without the last,
/// which counts as l = 1 if it places its own off the device:
/// saved R U (M (h + d) + P (l + H)), loaded R U ((M + P) (h + d) + P (l + H)),
/// spilled R U M d, fetched R U (M + P) d.
[[nodiscard]] BoundaryTraffic boundary_traffic(const Workload& workload,
                                               const Placement& placement);

}  // namespace spillway::plan
