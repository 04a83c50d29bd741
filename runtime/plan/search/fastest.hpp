// Search for the placement with the shortest simulated step. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/block_cut.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::plan {

/// A search keeps its first placement unless another one's step takes less than this share of its
/// time: no profile is precise enough for a smaller difference.
inline constexpr double kWorthwhile = 0.99;
/// Ops that a search simulates, about a second's worth.
inline constexpr std::size_t kOpsSimulated = 4'000'000;

/// Whether the request leaves the cut open.
[[nodiscard]] bool allows(const Workload& workload, const PlacementRequest& request,
                          const BlockCut& cut);

/// Returns the admissible cuts of a layer that the request leaves open and the machine can run.
/// The profile excludes no cut that the user named.
[[nodiscard]] std::vector<BlockCut> open_cuts(const Workload& workload,
                                              const PlacementRequest& request,
                                              const MachineProfile& profile);

/// How much of what a request leaves open a search tries. `quick`, to compare steps: parameters and
/// sums of rounds take the room that is left and have no ways of their own, and of long steps only
/// the most promising few are simulated.
enum class SearchEffort : std::uint8_t { whole, quick };

struct PlannedStep {
  Placement placement;
  Prediction prediction;
  std::size_t simulated = 0;  ///< placements that were simulated to find it
};

/// Finds the way to place all blocks with the shortest step; `first` is one for the request. Tries
/// what the request leaves open of state on the device, boundaries off it, saved activations (kept,
/// recomputed, on the host for a share of the blocks), residency and sums of rounds in each way, by
/// itself and together with the rest. Where ranks gather parameters, tries the best of these with
/// gathers further ahead. Does not simulate what cannot be faster, and of steps of very many ops
/// simulates only those placements whose lanes have the least to do. None uses the disk unless
/// `first` does, and none replaces it for less than a hundredth of the step: no profile is that
/// exact. Throws `Error{invalid_argument}` for a rate that the profile lacks.
[[nodiscard]] PlannedStep fastest_way(const Workload& workload, const Budgets& budgets,
                                      const PlacementRequest& request,
                                      const MachineProfile& profile, const Placement& first,
                                      SearchEffort effort = SearchEffort::whole);

/// Finds a placement with a step as short, or with a shorter one in which blocks that are alike
/// differ (`detail::descend`): one rank's whole layers, searched whole.
[[nodiscard]] PlannedStep fastest_placement(const Workload& workload, const Budgets& budgets,
                                            const PlacementRequest& request,
                                            const MachineProfile& profile, const Placement& first,
                                            SearchEffort effort = SearchEffort::whole);

}  // namespace spillway::plan
