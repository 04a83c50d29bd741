// XXH3-64 through libxxhash, with the widest vectors of the processor where the library was built
// with its dispatcher; the value does not depend on that.
#ifdef SPILLWAY_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <array>
#include <numeric>

#include "nvme_swap/format.hpp"

namespace spillway::nvme_swap {

namespace {

std::uint64_t xxh3(const void* data, std::size_t bytes) {
#ifdef SPILLWAY_XXHASH_DISPATCH
  return XXH3_64bits_dispatch(data, bytes);
#else
  return XXH3_64bits(data, bytes);
#endif
}

/// The checksum of what came before and of one piece more.
std::uint64_t fold(std::uint64_t before, std::uint64_t piece) {
  const std::array both{before, piece};
  return xxh3(both.data(), sizeof both);
}

}  // namespace

std::uint64_t checksum_of(std::span<const std::byte> data) {
  std::uint64_t checksum = checksum_of_piece(data, 0);
  for (std::size_t piece = 1; piece < checksum_pieces(data.size()); ++piece) {
    checksum = fold(checksum, checksum_of_piece(data, piece));
  }
  return checksum;
}

std::uint64_t checksum_of_piece(std::span<const std::byte> data, std::size_t piece) {
  const std::size_t first = piece * kChecksumPiece;
  const std::span<const std::byte> bytes =
      data.subspan(first, std::min(kChecksumPiece, data.size() - first));
  return xxh3(bytes.data(), bytes.size());
}

std::uint64_t combine_checksums(std::span<const std::uint64_t> pieces) {
  return std::accumulate(pieces.begin() + 1, pieces.end(), pieces.front(), fold);
}

}  // namespace spillway::nvme_swap
