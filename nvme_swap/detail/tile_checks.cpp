#include "nvme_swap/detail/tile_checks.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway::nvme_swap::detail {

void check_tile(const StoreMap& map, TileIndex tile, std::span<const std::byte> data) {
  if (tile.value() >= map.tiles.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tile {} of a store with {} tiles", tile.value(), map.tiles.size()));
  }
  const std::uint64_t bytes = map.tiles[tile.value()].bytes;
  if (data.size() != bytes || reinterpret_cast<std::uintptr_t>(data.data()) % kPageBytes != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a buffer of {} bytes at {} for tile {}, which needs {} bytes aligned "
                            "to {}",
                            data.size(), fmt::ptr(data.data()), tile.value(), bytes, kPageBytes));
  }
}

void throw_damaged(const StoreMap& map, TileIndex tile, const TileRecord& expected,
                   std::uint64_t actual, const std::filesystem::path& file) {
  throw Error(ErrorCode::corrupt_data,
              fmt::format("tile {} of {} (slot {}, {} bytes at offset {}) is not what was written: "
                          "checksum {:016x} instead of {:016x}",
                          tile.value(), file.string(), expected.slot, map.tiles[tile.value()].bytes,
                          map.slot_offset(tile, expected.slot), actual, expected.checksum));
}

}  // namespace spillway::nvme_swap::detail
