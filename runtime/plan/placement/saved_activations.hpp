// Saved activations: the activations inside a block that its backward reads,
// `BlockShape::saved_bytes` a micro-batch; where they wait and what moving them costs. Pure.
//
// A block that keeps them gives them device memory of their own or, where `BlockCut::saved` says
// so, a home in host memory or on disk. Then forward computes them into a device slot
// (`Placement::saved_slots`, used in turn by all blocks), they are saved as soon as they are
// complete, and they come back to a slot for backward. A slot is free again with the save or with
// the backward, so that with two or more of them the copies of one micro-batch hide behind the
// computation of another. On their way to and from the disk they pass through host buffers,
// `Placement::saved_staging`.
#pragma once

#include <cstdint>

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Whether the block's saved activations leave the device. The head's never do: its two passes
/// are one op. Blocks that save nothing have nothing to move.
[[nodiscard]] bool saved_activations_leave(const Workload& workload, const Placement& placement,
                                           std::uint32_t block);
/// Bytes of all saved activations that leave the device, for one micro-batch.
[[nodiscard]] Bytes offloaded_saved_activations(const Workload& workload,
                                                const Placement& placement);

/// Returns what a training step moves: with R rounds of M micro-batches and S_b the `saved_bytes`
/// of block b: R M times the sum of S_b over the blocks that leave, and in whole pages over those
/// whose home is the disk.
[[nodiscard]] ActivationTraffic saved_activations_traffic(const Workload& workload,
                                                          const Placement& placement);

}  // namespace spillway::plan
