// StateSlots: how a tile's slot on disk lies in the store. The state that an update reads is one
// tile of the store; 16-bit parameters, which the formats other than fp32 cannot do without, are
// another, written with it and read only by recovery. Where updates are delayed, the weights that
// the next step's passes use are a third. Each has a checksum of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_adam/state_format.hpp"
#include "nvme_swap/committed_tiles.hpp"
#include "nvme_swap/tile_store.hpp"
#include "runtime/plan/buffers.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::engine {

class StateSlots {
 public:
  StateSlots() = default;
  /// Takes `tiles`, which are of so many blocks; some blocks may have none.
  StateSlots(StateFormat format, std::vector<plan::Tile> tiles, std::size_t blocks);
  /// Takes a replica's tiles of the workload, with room on disk only for those that go there.
  StateSlots(const plan::Workload& workload, const plan::Placement& placement,
             std::uint32_t replica);

  [[nodiscard]] std::span<const plan::Tile> tiles() const { return tiles_; }
  /// Returns the tiles of a block as buffers of a pool that has them all.
  [[nodiscard]] plan::Buffer tiles_of(plan::PoolKind pool, std::uint32_t block) const {
    return {pool, first_tile_[block], first_tile_[block + 1] - first_tile_[block]};
  }
  /// Returns the losses of all passes: they lie behind the leaves of all tiles.
  [[nodiscard]] plan::Buffer losses() const {
    return {plan::PoolKind::host_leaves, static_cast<std::uint32_t>(tiles_.size())};
  }
  /// Returns the store's tiles: the state of every tile, then the parameters of every tile, then
  /// the stash of every tile.
  [[nodiscard]] nvme_swap::StoreLayout store_layout() const;
  [[nodiscard]] const cpu_adam::StateLayout& layout(std::uint32_t tile) const {
    return layouts_[tile];
  }
  /// Whether slots hold 16-bit parameters too.
  [[nodiscard]] bool with_parameters() const { return cpu_adam::needs_parameters(format_); }
  [[nodiscard]] static TileIndex state(std::uint32_t tile) { return TileIndex{tile}; }
  [[nodiscard]] TileIndex parameters(std::uint32_t tile) const {
    return TileIndex{static_cast<std::uint32_t>(tiles_.size()) + tile};
  }

  /// Whether commits keep the weights before the last update, because a resumed step needs them.
  [[nodiscard]] bool with_stash() const { return !stash_bytes_.empty(); }
  /// Returns the stash of `tile` in a buffer that has room for the largest slot.
  [[nodiscard]] std::span<std::byte> stash_of(std::uint32_t tile,
                                              std::span<std::byte> buffer) const {
    return buffer.first(stash_bytes_[tile]);
  }
  /// Reads the stash of `tile` from `store` and verifies it, or writes it there. `stash`: as
  /// `stash_of` returns it. Both block.
  void load_stash(nvme_swap::TileStore& store, std::uint32_t tile,
                  std::span<std::byte> stash) const;
  void save_stash(nvme_swap::TileStore& store, std::uint32_t tile,
                  std::span<const std::byte> stash) const;

  /// Reads the state of `tile` from `store`, and not its parameters, and verifies it. Blocks.
  void load_state(nvme_swap::TileStore& store, std::uint32_t tile, std::span<std::byte> slot) const;
  /// Reads the 16-bit parameters of `tile` from `store`, where slots hold them, and verifies them.
  /// Blocks.
  void load_parameters(nvme_swap::TileStore& store, std::uint32_t tile,
                       std::span<std::byte> target) const;
  /// Reads `tile` from `store` and verifies it. `slot`: [layout.disk_bytes]. Blocks.
  void load(nvme_swap::TileStore& store, std::uint32_t tile, std::span<std::byte> slot) const;
  /// Reads likewise from the newest commit of another run's store, which may have moved on.
  [[nodiscard]] nvme_swap::TileRead load(const nvme_swap::CommittedTiles& tiles, std::uint32_t tile,
                                         std::span<std::byte> slot) const;
  /// Writes `tile` to `store`. Blocks.
  void save(nvme_swap::TileStore& store, std::uint32_t tile, std::span<std::byte> slot) const;
  /// Returns the whole slot of `tile` in a buffer that has room for the largest.
  [[nodiscard]] std::span<std::byte> slot_of(std::uint32_t tile,
                                             std::span<std::byte> buffer) const {
    return buffer.first(layouts_[tile].disk_bytes);
  }
  /// Returns the parts of a whole slot in memory.
  [[nodiscard]] std::span<std::byte> state_of(std::uint32_t tile, std::span<std::byte> slot) const {
    return slot.first(layouts_[tile].bytes);
  }
  [[nodiscard]] std::span<std::byte> parameters_of(std::uint32_t tile,
                                                   std::span<std::byte> slot) const;

 private:
  [[nodiscard]] TileIndex stash_tile(std::uint32_t tile) const {
    const std::size_t behind = tiles_.size() * (with_parameters() ? 2 : 1);
    return TileIndex{static_cast<std::uint32_t>(behind) + tile};
  }

  StateFormat format_ = StateFormat::fp32;
  std::vector<plan::Tile> tiles_;
  std::vector<cpu_adam::StateLayout> layouts_;  ///< by tile
  /// Whether each tile never goes to a store. There it has one page, the least, instead of a slot's
  /// bytes.
  std::vector<bool> off_disk_;
  std::vector<std::size_t> stash_bytes_;   ///< by tile, in whole pages; none without a stash
  std::vector<std::uint32_t> first_tile_;  ///< by block; behind them the number of all
};

}  // namespace spillway::engine
