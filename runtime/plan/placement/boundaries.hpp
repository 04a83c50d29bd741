// Boundaries: the tensors between layers, [T, W] a micro-batch, activations on the way forward and
// their gradients on the way back; where they live and what moving them costs. Pure.
//
// With `Placement::boundary_slots` 0 every one has device memory of its own. Otherwise activations
// of layers that are placed off the device, and all gradients, pass through shared device slots:
//
// - An activation that leaves the device is saved once, as soon as it is computed, and comes back
//   for the backward of the layer that read it. Only the head reads that of the last layer, and
//   only another stage reads one that a stage of a pipeline sends; a stage saves those it receives.
// - What passes from one layer's visit to the next (the newest activation, then its gradient) stays
//   in a slot, one for each micro-batch under way; so does what the parts of a layer share.
// - In a stage, what has come before its pass begins, or is still to be sent, waits in a slot too.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Returns where a layer's activations wait for the backward that reads them; nothing if no
/// backward of this rank does and they are off the device.
[[nodiscard]] std::optional<Tier> boundary_home(const Workload& workload,
                                                const Placement& placement, std::uint32_t layer);
/// Returns the same of a layer whose activations are placed in `tier`; `waits`:
/// Workload::output_waits.
[[nodiscard]] std::optional<Tier> boundary_home(Tier tier, bool waits);
/// Number of device slots: `boundary_slots` and the slots that pass from layer to layer.
[[nodiscard]] std::uint32_t device_boundary_slots(const Workload& workload,
                                                  const Placement& placement);
/// Number of layers whose activations have this home; in a stage, of its own that wait there.
[[nodiscard]] std::uint32_t layers_with(const Workload& workload, const Placement& placement,
                                        Tier home);
/// Bytes that a tensor takes on disk and in its staging buffer: whole pages.
[[nodiscard]] Bytes in_pages(Bytes bytes);

/// Bytes of activations that a training step moves.
struct ActivationTraffic {
  Bytes saved;    ///< device to host, and as many back
  Bytes spilled;  ///< host to disk, and as many back
};
/// Returns the traffic of boundaries: with U the bytes of a boundary, M micro-batches, R rounds,
/// and h and d the layers at home on the host or the disk: saved R U M (h + d), spilled R U M d.
[[nodiscard]] ActivationTraffic boundary_traffic(const Workload& workload,
                                                 const Placement& placement);

}  // namespace spillway::plan
