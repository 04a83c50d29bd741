// Moves of data between tiers: what makes a draft fit, and what fills the device with the room that
// is left. Each changes the cuts of single blocks. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/search/draft.hpp"

namespace spillway::plan::detail {

/// Gives the block's data another tier.
template <class Home>
void move(Draft& draft, std::uint32_t block, Home BlockCut::*data, Tier tier) {
  BlockCut cut = draft.block(block);
  cut.*data = tier;
  draft.set(block, cut);
}

/// One data node of the blocks before `end`, moved to the device.
struct Upgrade {
  void (*apply)(BlockCut& cut);
  std::uint32_t end;
  double flops_spared = 0;  ///< for each byte of the device
  double link_spared = 0;   ///< bytes over the link, the same
};

/// Returns the upgrades that the request leaves open, by price. The link's time is hidden behind
/// compute while there are enough tokens, and that of a FLOP never is: what spares FLOPs comes
/// first, then what spares the link the most.
[[nodiscard]] std::vector<Upgrade> upgrades(const PoolSizes& sizes,
                                            const PlacementRequest& request);

/// Upgrades all blocks, else as many as fit, the latest first.
void fill(Draft& draft, const Upgrade& upgrade);

/// Keeps saved activations of a share of the blocks on the host, spread evenly so each copy can
/// hide behind the compute of the blocks before the next copy.
void spread_saved(Draft& draft, const PlacementRequest& request);

/// Moves saved activations of as few blocks as make the device large enough to the tier, the
/// earliest first: they wait longest for their backward.
void offload_saved(Draft& draft, Tier tier);

/// Moves state of as few blocks as make the host large enough to disk, the latest first.
void spill_state(Draft& draft);

/// Gives boundaries on their way to and from the disk as many buffers of the host as of the device.
void stage_boundaries(Placement& placement);

/// Moves likewise outputs of layers before `end`, the earliest first: they wait longest.
void spill_outputs(Draft& draft, std::uint32_t end);

}  // namespace spillway::plan::detail
