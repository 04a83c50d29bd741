// BufferTiles: where buffers on disk lie in a store that has a tile for each of them, pool by pool.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "nvme_swap/tile_store.hpp"
#include "runtime/engine/step/memory.hpp"

namespace spillway::engine {

class BufferTiles {
 public:
  BufferTiles(const Memory& memory, std::initializer_list<plan::PoolKind> pools);

  /// Returns the store's tiles; none where nothing is placed in these pools.
  [[nodiscard]] const std::vector<Bytes>& tiles() const { return tiles_; }
  /// Returns the tile of a buffer that is not empty.
  [[nodiscard]] TileIndex tile_of(const plan::Buffer& buffer) const;

 private:
  std::vector<Bytes> tiles_;
  std::array<std::vector<std::uint32_t>, plan::kPoolCount> by_buffer_;  ///< by pool: the tile
};

/// Returns the tiles of saved tensors: boundaries first, then what blocks save.
[[nodiscard]] inline BufferTiles activation_tiles(const Memory& memory) {
  return {memory, {plan::PoolKind::disk_boundaries, plan::PoolKind::disk_saved_activations}};
}

/// Returns the tiles of what is frozen, one a block that has any.
[[nodiscard]] inline BufferTiles frozen_tiles(const Memory& memory) {
  return {memory, {plan::PoolKind::disk_frozen}};
}

}  // namespace spillway::engine
