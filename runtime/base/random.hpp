// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", 2011). A number is a pure function of seed, stream and index, so that any thread may
// ask for any of them in any order and get the same bits.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace spillway {

/// 128 random bits, or the 128-bit counter that yields them; word 0 is the lowest.
using RandomBlock = std::array<std::uint32_t, 4>;

/// Returns the block of random bits of `counter` under the 64-bit key `seed`.
constexpr RandomBlock philox4x32(RandomBlock counter, std::uint64_t seed) {
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

/// Position of a number: `stream` separates uses (a tensor, an epoch), `index` counts blocks in it.
struct RandomPosition {
  std::uint64_t stream;
  std::uint64_t index;
};

/// Returns the block of random bits at `position` under `seed`.
constexpr RandomBlock random_block(std::uint64_t seed, RandomPosition position) {
  return philox4x32(
      {static_cast<std::uint32_t>(position.index), static_cast<std::uint32_t>(position.index >> 32),
       static_cast<std::uint32_t>(position.stream),
       static_cast<std::uint32_t>(position.stream >> 32)},
      seed);
}

/// Returns the two 64-bit halves of a block.
constexpr std::array<std::uint64_t, 2> as_u64(const RandomBlock& block) {
  return {block[0] | std::uint64_t{block[1]} << 32, block[2] | std::uint64_t{block[3]} << 32};
}

/// Returns a number uniform in [0, 1): the upper 53 bits of `bits` over 2^53.
constexpr double uniform_from(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Returns a number uniform in [0, bound), without bias worth the name: it is below bound / 2^64.
/// `bound` is not 0.
constexpr std::uint64_t uniform_below(std::uint64_t bits, std::uint64_t bound) {
  // The upper half of bits * bound, from 32-bit pieces.
  const std::uint64_t low = (bits & 0xffffffffU) * (bound & 0xffffffffU) >> 32;
  const std::uint64_t middle0 = (bits >> 32) * (bound & 0xffffffffU) + low;
  const std::uint64_t middle1 = (bits & 0xffffffffU) * (bound >> 32) + (middle0 & 0xffffffffU);
  return (bits >> 32) * (bound >> 32) + (middle0 >> 32) + (middle1 >> 32);
}

/// Returns two independent standard normal numbers from a block, by Box-Muller in fp64. The same
/// bits on every machine with the same C library; round to fp32 what must not depend on its last
/// digit.
inline std::array<double, 2> normal_pair(const RandomBlock& block) {
  const auto [first, second] = as_u64(block);
  // 1 - u lies in (0, 1], where the logarithm is finite: the largest radius is 8.57.
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform_from(first)));
  const double angle = 2.0 * std::numbers::pi * uniform_from(second);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace spillway
