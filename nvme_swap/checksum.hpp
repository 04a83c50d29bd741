// The checksum of a tile, a header and a commit record. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/units.hpp"

namespace spillway::nvme_swap {

/// Threads share the work of a checksum by pieces of this size, in any order: whoever goes through
/// a tile's arrays part by part can sum the pieces of each while they are in the cache.
inline constexpr std::size_t kChecksumPiece = kPageBytes;
inline constexpr std::size_t kChecksumGroup = 64;  ///< pieces

/// Returns XXH3-64 of up to one piece. Of more: of 0, then for each group of pieces XXH3-64 of the
/// checksum so far and of XXH3-64 of the pieces' own.
[[nodiscard]] std::uint64_t checksum_of(std::span<const std::byte> data);
[[nodiscard]] constexpr std::size_t checksum_pieces(std::size_t bytes) {
  return bytes <= kChecksumPiece ? 1 : (bytes + kChecksumPiece - 1) / kChecksumPiece;
}
/// Returns the checksum of `data`'s piece number `piece`.
[[nodiscard]] std::uint64_t checksum_of_piece(std::span<const std::byte> data, std::size_t piece);
/// Returns `checksum_of` the data whose pieces have these checksums.
[[nodiscard]] std::uint64_t combine_checksums(std::span<const std::uint64_t> pieces);

}  // namespace spillway::nvme_swap
