// ActivationTiles: where saved tensors lie in the store of activations, which has a tile for each
// of their buffers on disk: boundaries first, then what blocks save. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "nvme_swap/tile_store.hpp"
#include "runtime/engine/step/memory.hpp"

namespace spillway::engine {

class ActivationTiles {
 public:
  explicit ActivationTiles(const Memory& memory);

  /// Returns the store's tiles; none where no activations are placed on disk.
  [[nodiscard]] const std::vector<Bytes>& tiles() const { return tiles_; }
  /// Returns the tile of a buffer that is not empty.
  [[nodiscard]] TileIndex tile_of(const plan::Buffer& buffer) const;

 private:
  std::vector<Bytes> tiles_;
  std::vector<std::uint32_t> boundaries_, saved_;  ///< by buffer: its tile
};

}  // namespace spillway::engine
