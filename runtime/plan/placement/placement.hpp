// Where every byte lives, and how many slots each pool has. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/units.hpp"
#include "runtime/plan/orders.hpp"
#include "runtime/plan/placement/block_cut.hpp"
#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

struct Placement {
  std::vector<BlockCut> blocks;  ///< as Workload::blocks
  WorkOrder order = WorkOrder::layer_major;
  StateFormat format = StateFormat::fp32;
  ElementCount tile_parameters{2u << 20};
  std::uint32_t parameter_slots = 2;   ///< device homes shared by the streamed blocks
  std::uint32_t gradient_slots = 2;    ///< device fp32 accumulators
  std::uint32_t state_slots = 4;       ///< host staging buffers for tiles on nvme
  std::uint32_t boundary_slots = 0;    ///< device homes shared by boundaries that come and go
  std::uint32_t boundary_staging = 0;  ///< host buffers for boundaries on nvme
  std::uint32_t saved_slots = 0;    ///< device homes shared by saved activations that come and go
  std::uint32_t saved_staging = 0;  ///< host buffers for saved activations on nvme
  /// Host buffers through which what is frozen of blocks passes whose parameters are on nvme.
  std::uint32_t frozen_staging = 0;
  bool commits = true;  ///< every tile has slots on disk; else only tiles that live there
  /// Number of blocks, the last ones, that a step updates ahead of the decision about its update,
  /// into the spare slots of their tiles. All state is on disk, and each step commits.
  std::uint32_t speculative_blocks = 0;

  [[nodiscard]] bool any_state(Tier tier) const;
  /// Whether a step writes all state to disk anyway, and so can commit itself. Lists of ops and the
  /// engine that runs them both ask here.
  [[nodiscard]] bool all_state_on_disk() const {
    return !any_state(Tier::device) && !any_state(Tier::host);
  }
  /// Returns the first of the blocks that are updated ahead; the number of all if none is.
  [[nodiscard]] std::uint32_t first_speculative() const {
    return static_cast<std::uint32_t>(blocks.size()) - speculative_blocks;
  }
  [[nodiscard]] bool any_output(Tier tier) const;
  [[nodiscard]] bool any_saved(Tier tier) const;
  /// Whether a step moves anything to or from the disk.
  [[nodiscard]] bool uses_disk() const {
    return any_state(Tier::nvme) || any_output(Tier::nvme) || any_saved(Tier::nvme);
  }
  bool operator==(const Placement&) const = default;
};

/// Returns the placement of one micro-batch for passes of single layers, or of a model that is not
/// trained: the parameters of whole layers lie on the device, tiles share the fewest slots, outputs
/// and gradients follow each other in two places.
[[nodiscard]] Placement lean_placement(const Workload& workload, std::optional<Tier> saved = {});

/// Least number of `parameter_slots` with which streamed blocks can run: a tied head needs its own
/// parameters and those of block 0 at once.
[[nodiscard]] std::uint32_t least_parameter_slots(const Workload& workload,
                                                  const Placement& placement);

/// Whether a pass over the block needs one of `parameter_slots`.
[[nodiscard]] bool is_streamed(const Workload& workload, const Placement& placement,
                               std::uint32_t block);
[[nodiscard]] bool any_streamed(const Workload& workload, const Placement& placement);
/// Number of device homes for parts of blocks that are uploaded for all ranks.
[[nodiscard]] std::uint32_t parameter_shard_slots(const Workload& workload,
                                                  const Placement& placement);

/// Whether blocks may be updated ahead of the decision about their update. Of many ranks, one may
/// not overwrite its older commit before all have the newer one; in other orders, passes that come
/// later read what is updated.
[[nodiscard]] bool may_speculate(const Workload& workload, const Placement& placement);

/// One line of a memory table.
struct MemoryItem {
  Tier tier;
  std::string what;
  Bytes bytes;
};

/// Lists all bytes that a run of this placement allocates, item by item, exactly.
[[nodiscard]] std::vector<MemoryItem> memory_items(const Workload& workload,
                                                   const Placement& placement);
[[nodiscard]] Bytes total(const std::vector<MemoryItem>& items, Tier tier);

/// Bytes of momentum (or of variance) of `parameters` parameters, with their scales.
[[nodiscard]] Bytes moment_bytes(StateFormat format, ElementCount parameters);
/// Bytes of a tile's state, in whole pages, as an update reads it from a slot and a home in memory
/// holds it: the master (or its remainder), m and v. 16-bit parameters are elsewhere in memory.
[[nodiscard]] Bytes state_bytes(StateFormat format, ElementCount parameters);
/// Bytes of a tile's slot on disk: the state and, where the master is not whole without them, the
/// 16-bit parameters. nvme_swap/tile_store.hpp says why there are two slots.
[[nodiscard]] Bytes slot_bytes(StateFormat format, ElementCount parameters);
/// Bytes beside the slot of what a commit keeps of the weights before the last update, in whole
/// pages: 0 unless updates are delayed.
[[nodiscard]] Bytes stash_slot_bytes(const Workload& workload, ElementCount parameters);

/// Bytes of one slot of each tile that has slots on disk: every tile with commits, else only tiles
/// that live there.
[[nodiscard]] Bytes slots_on_disk(const Workload& workload, const Placement& placement);

/// Returns the tiles of all blocks in block order, or of a replica's shards of them; each starts on
/// a leaf of its block. Those of other replicas have the same blocks and sizes.
[[nodiscard]] std::vector<Tile> make_tiles(const Workload& workload, ElementCount tile_parameters,
                                           std::uint32_t replica);

/// Size of the first gradient slot, for the largest block that takes one. The vectors of tiles have
/// a slot of their own behind all others.
[[nodiscard]] ElementCount gradient_slot_elements(const Workload& workload);
/// Size of each gradient slot but the first, where there are n of them: the second largest of any n
/// blocks in a row, so that all of them find a slot.
class NarrowSlots {
 public:
  explicit NarrowSlots(const Workload& workload);
  [[nodiscard]] ElementCount of(std::uint32_t slots) const {
    return sizes_[std::min<std::size_t>(slots, sizes_.size() - 1)];
  }

 private:
  std::vector<ElementCount> sizes_;  // by their number, up to one for each block
};
[[nodiscard]] ElementCount vector_elements(const Workload& workload);  ///< 0 without tiles
[[nodiscard]] ElementCount largest_block(const Workload& workload);
/// Element type of a gradient while it waits for its update: the compute dtype's, or fp32 where
/// several are summed.
[[nodiscard]] DType waiting_gradient_dtype(const Workload& workload);

}  // namespace spillway::plan
