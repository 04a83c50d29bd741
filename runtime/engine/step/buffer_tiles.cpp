#include "runtime/engine/step/buffer_tiles.hpp"

#include "runtime/base/error.hpp"

namespace spillway::engine {

using plan::PoolKind;

BufferTiles::BufferTiles(const Memory& memory, std::initializer_list<PoolKind> pools) {
  for (const PoolKind kind : pools) {
    const plan::Pool& pool = memory.pool(kind);
    for (std::uint32_t i = 0; i < pool.ends.size(); ++i) {
      by_buffer_[static_cast<std::size_t>(kind)].push_back(
          static_cast<std::uint32_t>(tiles_.size()));
      const Bytes bytes{pool.ends[i] - pool.offset(i)};
      if (bytes > Bytes{}) tiles_.push_back(bytes);
    }
  }
}

TileIndex BufferTiles::tile_of(const plan::Buffer& buffer) const {
  const std::vector<std::uint32_t>& tiles = by_buffer_[static_cast<std::size_t>(buffer.pool)];
  SPILLWAY_ASSERT(buffer.first < tiles.size());
  return TileIndex{tiles[buffer.first]};
}

}  // namespace spillway::engine
