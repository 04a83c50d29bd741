// MappedTiles: the tiles of a store of one slot as memory of this process. What is read there comes
// through the page cache, unverified; what is written there stays in this process and never reaches
// the files. The mapping goes on when the store has ended and its files are removed. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/units.hpp"

namespace spillway::nvme_swap {

/// Where a tile lies in a file.
struct TilePlace {
  int file = -1;  ///< its descriptor
  FileOffset offset;
  std::uint64_t bytes = 0;
};

class MappedTiles {
 public:
  MappedTiles() = default;
  /// Throws `Error{io_error}` if the system refuses.
  explicit MappedTiles(std::span<const TilePlace> places);
  MappedTiles(MappedTiles&& other) noexcept;
  MappedTiles& operator=(MappedTiles&& other) noexcept;
  MappedTiles(const MappedTiles&) = delete;
  MappedTiles& operator=(const MappedTiles&) = delete;
  ~MappedTiles();

  [[nodiscard]] std::span<std::byte> of(TileIndex tile) const { return tiles_[tile.value()]; }

 private:
  std::vector<std::span<std::byte>> tiles_;
};

}  // namespace spillway::nvme_swap
