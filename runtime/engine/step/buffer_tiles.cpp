#include "runtime/engine/step/activation_tiles.hpp"

#include "runtime/base/error.hpp"

namespace spillway::engine {

using plan::PoolKind;

ActivationTiles::ActivationTiles(const Memory& memory) {
  const auto lay = [&](PoolKind kind, std::vector<std::uint32_t>& by_buffer) {
    const plan::Pool& pool = memory.pool(kind);
    for (std::uint32_t i = 0; i < pool.ends.size(); ++i) {
      by_buffer.push_back(static_cast<std::uint32_t>(tiles_.size()));
      const Bytes bytes{pool.ends[i] - pool.offset(i)};
      if (bytes > Bytes{}) tiles_.push_back(bytes);
    }
  };
  lay(PoolKind::disk_boundaries, boundaries_);
  lay(PoolKind::disk_saved_activations, saved_);
}

TileIndex ActivationTiles::tile_of(const plan::Buffer& buffer) const {
  const bool boundary = buffer.pool == PoolKind::disk_boundaries;
  SPILLWAY_ASSERT(boundary || buffer.pool == PoolKind::disk_saved_activations);
  return TileIndex{(boundary ? boundaries_ : saved_)[buffer.first]};
}

}  // namespace spillway::engine
