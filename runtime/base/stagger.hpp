// Where arrays that are read together start. Memory is spread over channels and caches by the low
// bits of an address, so arrays that start at one offset of their huge pages ask for the same
// channel at every step of a pass over all of them. Pure functions, any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/units.hpp"

namespace spillway {

/// Size that the kernel maps as one page where it can: within one, addresses are those of the
/// memory.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// How far apart in a huge page the starts of two arrays are; some pages, so that each still starts
/// on one.
inline constexpr std::size_t kStaggerBytes = std::size_t{16} << 10;

/// Whether arrays at these addresses (or offsets of one place), the second behind the first, start
/// at least `kStaggerBytes` apart modulo a huge page. Also true where the first is shorter than
/// that: a pass is through it before it matters.
[[nodiscard]] constexpr bool staggered(std::uint64_t first, std::uint64_t second) {
  if (second - first < kStaggerBytes) return true;
  const std::uint64_t apart = (second - first) % kHugePageBytes;
  return apart >= kStaggerBytes && kHugePageBytes - apart >= kStaggerBytes;
}

/// Places one array after another, each on a cache line.
template <std::size_t N>
struct StaggeredArrays {
  std::array<std::uint64_t, N> starts{};
  std::uint64_t end = 0;
};

/// Returns the nearest places of arrays of these sizes, in this order, where every two are
/// staggered. Within a huge page less a stagger they follow each other without a gap.
template <std::size_t N>
[[nodiscard]] constexpr StaggeredArrays<N> stagger(const std::array<std::uint64_t, N>& sizes) {
  constexpr std::uint64_t kLine = 64;
  StaggeredArrays<N> arrays;
  for (std::size_t k = 0; k < N; ++k) {
    std::uint64_t start = round_up(arrays.end, kLine);
    for (std::size_t before = 0; sizes[k] > 0 && before < k;) {
      const std::uint64_t other = arrays.starts[before];
      if (sizes[before] == 0 || staggered(other, start)) {
        ++before;
        continue;
      }
      // The next multiple of a huge page behind `other` and a stagger more; then all over again.
      start = other + round_up(start - other - (kStaggerBytes - 1), kHugePageBytes) + kStaggerBytes;
      before = 0;
    }
    arrays.starts[k] = start;
    arrays.end = start + sizes[k];
  }
  return arrays;
}

}  // namespace spillway
