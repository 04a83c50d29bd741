// XXH3-64 through libxxhash, with the widest vectors of the processor where the library was built
// with its dispatcher; the value does not depend on that.
#ifdef SPILLWAY_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <array>

#include "nvme_swap/checksum.hpp"

namespace spillway::nvme_swap {

namespace {

std::uint64_t xxh3(const void* data, std::size_t bytes) {
#ifdef SPILLWAY_XXHASH_DISPATCH
  return XXH3_64bits_dispatch(data, bytes);
#else
  return XXH3_64bits(data, bytes);
#endif
}

/// The checksum of the pieces before these, and of these: a group.
std::uint64_t fold(std::uint64_t before, std::span<const std::uint64_t> group) {
  const std::array both{before, xxh3(group.data(), group.size_bytes())};
  return xxh3(both.data(), sizeof both);
}

}  // namespace

std::uint64_t checksum_of(std::span<const std::byte> data) {
  const std::size_t pieces = checksum_pieces(data.size());
  if (pieces == 1) return checksum_of_piece(data, 0);
  std::uint64_t checksum = 0;
  std::array<std::uint64_t, kChecksumGroup> group;
  for (std::size_t first = 0; first < pieces; first += group.size()) {
    const std::size_t count = std::min(group.size(), pieces - first);
    for (std::size_t k = 0; k < count; ++k) group[k] = checksum_of_piece(data, first + k);
    checksum = fold(checksum, std::span(group).first(count));
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
  if (pieces.size() == 1) return pieces.front();
  std::uint64_t checksum = 0;
  for (; !pieces.empty(); pieces = pieces.subspan(std::min(kChecksumGroup, pieces.size()))) {
    checksum = fold(checksum, pieces.first(std::min(kChecksumGroup, pieces.size())));
  }
  return checksum;
}

}  // namespace spillway::nvme_swap
