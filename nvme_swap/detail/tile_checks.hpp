// What every reader of tiles checks, with one wording. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "nvme_swap/format.hpp"
#include "runtime/base/units.hpp"

namespace spillway::nvme_swap::detail {

/// Throws `Error{invalid_argument}` unless `tile` is one of the store and `data` can hold it.
void check_tile(const StoreMap& map, TileIndex tile, std::span<const std::byte> data);

/// Throws `Error{corrupt_data}`: the tile in `file` that `expected` describes has the checksum
/// `actual`.
[[noreturn]] void throw_damaged(const StoreMap& map, TileIndex tile, const TileRecord& expected,
                                std::uint64_t actual, const std::filesystem::path& file);

}  // namespace spillway::nvme_swap::detail
