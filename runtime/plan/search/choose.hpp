// Chooses a placement: which blocks stay on the device, what is kept, where state lives. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::plan {

/// What the user asked for; an empty option is the planner's choice.
struct PlacementRequest {
  std::optional<Tier> state{};     ///< home of all optimizer state
  std::optional<bool> resident{};  ///< all parameters on the device, or none
  std::optional<bool> keep{};      ///< all activations kept, or all recomputed
  bool offload = false;            ///< with `keep`: what does not fit waits elsewhere
  Tier offload_to = Tier::host;    ///< with `offload`: where it waits
  /// Share of the blocks whose saved activations wait on the host; only while `keep` is open.
  double offload_share = 0;
  std::optional<Tier> activations{};  ///< home of all boundary activations
  std::optional<bool> sums{};         ///< gradients of rounds summed on the device, or off it
  WorkOrder order = WorkOrder::layer_major;
  StateFormat format = StateFormat::fp32;
  ElementCount tile_parameters{2u << 20};
  std::optional<std::uint32_t> prefetch{};  ///< blocks uploaded ahead; slots = prefetch + 1
  bool commits = true;                      ///< steps are made true on disk; see `Placement`
  bool device_updates = true;  ///< the device can run updates; else it does where `state` says so
};

/// Number of blocks that the request uploads ahead, at most all: more slots would stay empty.
[[nodiscard]] inline std::uint32_t prefetch_of(const PlacementRequest& request,
                                               const Workload& workload) {
  return std::min(request.prefetch.value_or(kUsualPrefetch),
                  static_cast<std::uint32_t>(workload.blocks.size()));
}

/// The least that the request needs of one tier, and what the budget gives.
struct Shortage {
  Tier tier = Tier::device;
  Bytes needed;
  Bytes budget;
};

/// Chooses the placement that fits and that the rules below prefer, or names the first tier that
/// cannot hold its least.
///
/// Everything stays on the device; else the state leaves it, and the room that is left is filled
/// with saved activations, parameters and sums of rounds of as many blocks as fit, by their price
/// (`detail::upgrades`): recomputation costs FLOPs that nothing hides, and streaming is hidden
/// behind compute while there are enough tokens.
/// Saved activations go to the host, or to nvme, only with `PlacementRequest::offload`: for as few
/// blocks as make the rest fit, the earliest first; or with `offload_share`, for that share of the
/// blocks, spread evenly. State goes to the host, and to nvme for the blocks
/// that do not fit there. Boundary activations leave the device for as few blocks as make the rest
/// fit, the earliest first: theirs wait longest for their backward. They go to the host; to nvme
/// only where moving state there is not enough, since state moves once a step and they move every
/// round. Slots that only hide time (prefetch, the second gradient slot, staging beyond one tile)
/// are given up before the request is. Throws `Error{invalid_argument}` for device state with
/// streamed parameters, `Error{not_supported}` for tiles with saved activations off the device.
[[nodiscard]] std::variant<Placement, Shortage> choose_placement(const Workload& workload,
                                                                 const Budgets& budgets,
                                                                 const PlacementRequest& request);

/// The same, with the number of placements that were looked at.
struct CountedChoice {
  std::variant<Placement, Shortage> choice;
  std::size_t tried = 0;
};
[[nodiscard]] CountedChoice count_choice(const Workload& workload, const Budgets& budgets,
                                         const PlacementRequest& request);

}  // namespace spillway::plan
