#include "runtime/engine/embedded/values/frozen_file.hpp"

#include <algorithm>

#include "nvme_swap/checksum.hpp"

namespace spillway::engine {

FrozenFile::FrozenFile(StepEngine& engine)
    : engine_(engine),
      store_(engine.frozen_store()),
      tiles_(frozen_tiles(engine.memory())),
      written_(tiles_.tiles().size()) {
  if (store_ != nullptr) mapping_ = store_->map();
}

TileIndex FrozenFile::tile_of(std::uint32_t block) const {
  return tiles_.tile_of({plan::PoolKind::disk_frozen, block});
}

std::span<std::byte> FrozenFile::of(const FrozenRange& range) const {
  return mapping_.of(tile_of(*range.block)).subspan(range.first, range.bytes);
}

void FrozenFile::write(std::vector<FrozenPiece> pieces) {
  const auto block_of = [](const FrozenPiece& piece) { return *piece.range.block; };
  std::ranges::stable_sort(pieces, {}, block_of);
  for (auto first = pieces.begin(); first != pieces.end();) {
    const std::uint32_t block = block_of(*first);
    const auto end = std::ranges::upper_bound(first, pieces.end(), block, {}, block_of);
    write_unit(block, {first, end});
    first = end;
  }
}

void FrozenFile::write_unit(std::uint32_t block, std::span<const FrozenPiece> pieces) {
  const TileIndex tile = tile_of(block);
  const std::span<std::byte> slot = engine_.memory()
                                        .all_host(plan::PoolKind::frozen_staging)
                                        .first(tiles_.tiles()[tile.value()].value());
  if (written_[tile.value()]) {
    store_->read(tile, slot).wait();
    store_->verify(tile, slot);
  } else {
    std::ranges::fill(slot, std::byte{});
  }
  for (const FrozenPiece& piece : pieces) {
    std::ranges::copy(piece.bytes, slot.begin() + static_cast<std::ptrdiff_t>(piece.range.first));
  }
  store_->write(tile, slot, nvme_swap::checksum_of(slot)).wait();
  written_[tile.value()] = true;
}

}  // namespace spillway::engine
