// Compares placements by what the simulator says of their steps. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/block_cut.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::plan {

/// A search keeps what it began with unless another step takes less than this share of its time:
/// no profile is good for a difference that is smaller.
inline constexpr double kWorthwhile = 0.99;
/// Ops that a search simulates, about a second's worth.
inline constexpr std::size_t kOpsSimulated = 4'000'000;

/// Returns whether the request leaves the cut open.
[[nodiscard]] bool allows(const Workload& workload, const PlacementRequest& request,
                          const BlockCut& cut);

/// Returns the admissible cuts of a layer that the request leaves open and the machine can run.
/// The profile excludes no cut that the user named.
[[nodiscard]] std::vector<BlockCut> open_cuts(const Workload& workload,
                                              const PlacementRequest& request,
                                              const MachineProfile& profile);

struct PlannedStep {
  Placement placement;
  Prediction prediction;
  std::size_t simulated = 0;  ///< placements that were simulated to find it
};

/// `first`, a placement for the request, or the one with the shortest step: what the request leaves
/// open of state on the device, boundaries off it, internal activations (kept, recomputed, on the
/// host for a share of the blocks), residency and sums of rounds is tried in each way, by itself
/// and together with the rest. Where ranks gather parameters, the best of these is tried with
/// gathers further ahead. What cannot be faster is not simulated, and of steps of very many ops
/// only those placements whose lanes have the least to do. None uses the disk if `first` does not,
/// and none takes its place for less than a hundredth of the step, which no profile is good for.
/// Throws `Error{invalid_argument}` for a rate that the profile lacks.
[[nodiscard]] PlannedStep fastest_placement(const Workload& workload, const Budgets& budgets,
                                            const PlacementRequest& request,
                                            const MachineProfile& profile, const Placement& first);

}  // namespace spillway::plan
