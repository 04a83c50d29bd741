// How 16-bit and 8-bit state stands for fp32 numbers, element by element: the plain form of what
// the vector kernels (detail/state_access.inl) and a GPU kernel do, with the same operations in the
// same order and so the same bits. Callers run it with FTZ and DAZ
// (runtime/base/simd/flush_denormals.hpp).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "cpu_adam/dynamic_map.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/base/host_device.hpp"
#include "runtime/base/random.hpp"

namespace spillway::cpu_adam {

/// Returns the lower half of a master's bits, which the bf16 parameter lacks; signed, see
/// join_master.
constexpr std::int16_t remainder_of(float master) {
  return static_cast<std::int16_t>(std::bit_cast<std::uint32_t>(master) & 0xffffU);
}

/// Joins bits = (parameter << 16) + remainder. The parameter was rounded to nearest, ties away from
/// zero, so it is one too high exactly where the remainder, read as signed, is negative.
constexpr float join_master(std::uint16_t parameter, std::int16_t remainder) {
  const auto low = static_cast<std::uint32_t>(static_cast<std::int32_t>(remainder));
  return std::bit_cast<float>((static_cast<std::uint32_t>(parameter) << 16) + low);
}

/// Key of stochastic rounding: of one block, at one step, for 2^32 parameters in a row.
struct RoundingKey {
  std::uint32_t first;
  std::uint32_t second;
};

/// Makes the key; `index_high` is the upper half of the index in the block. Philox (Salmon et al.
/// 2011), so that keys of different steps and blocks have nothing to do with each other.
constexpr RoundingKey rounding_key(std::uint64_t seed, std::uint64_t t, std::uint32_t block,
                                   std::uint32_t index_high) {
  const RandomBlock random = philox4x32(
      {index_high, block, static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(t >> 32)},
      seed);
  return {.first = random[0], .second = random[1]};
}

/// Returns 32 random bits for the parameter with this index: the lower half rounds m, the upper v.
/// The integer hash lowbias32 (Wellons 2018, "Prospecting for hash functions"; bias 0.17) of the
/// index, keyed before and between its multiplications: two of them, where Philox takes twenty.
constexpr std::uint32_t rounding_bits(RoundingKey key, std::uint32_t index) {
  std::uint32_t x = index ^ key.first;
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x ^= key.second;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

/// Returns bf16 bits of `value`, up with the probability that makes the mean exact. `random`: 16
/// bits.
constexpr std::uint16_t stochastic_bf16(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + random) >> 16);
}

/// Returns 1 / absmax, or 0 where that is of no use: no code then depends on the values.
SPILLWAY_HOST_DEVICE inline float inverse_scale(float absmax) {
  return absmax > 0 && std::isfinite(absmax) ? 1.0F / absmax : 0.0F;
}

/// Returns |x| as an integer that orders as the numbers do, NaN above infinity.
constexpr std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU;
}

/// Ranks y = |x| / absmax on the map's scale: how many of its positive values lie below the
/// nearest.
template <class Map>
inline std::uint32_t code_rank(float y) {
  const float clamped = y > Map::kSmallest ? y : Map::kSmallest;  // NaN becomes the smallest
  std::uint32_t decade = 0;
  for (const float threshold : Map::kThresholds) decade += clamped >= threshold ? 1 : 0;
  const float line = std::fma(Map::kRankSlope[decade], clamped, Map::kRankOffset[decade]);
  const float cap = Map::kRankCap[decade];
  return static_cast<std::uint32_t>(line < cap ? line : cap);
}

/// Codes m by minus the rank, with the sign of x. So zero is 0, and the ends, -128 for +1 and 127
/// for the largest below zero, -0.993 (-1 itself is not in the map), are those of a signed byte.
inline std::int8_t encode_signed(float x, float inverse) {
  const int rank = static_cast<int>(code_rank<SignedMap>(std::fabs(x * inverse)));
  return static_cast<std::int8_t>(std::signbit(x) ? (rank < 127 ? rank : 127) : -rank);
}

inline float decode_signed(std::int8_t code, float scale) {
  if (code == 0) return 0.0F * scale;  // NaN of a block that is spoiled
  const auto position = static_cast<float>(code < 0 ? -static_cast<int>(code) : code);
  const std::uint32_t octave = (std::bit_cast<std::uint32_t>(position) >> 23) % 16;
  const float value = std::fma(position, SignedMap::kValueSlope[octave] * scale,
                               SignedMap::kValueOffset[octave] * scale);
  return code < 0 ? value : -value;
}

/// Codes v, sorted ascending from 0; 255 is 1. Nothing is coded as 0, which would let the quotient
/// m / sqrt(v) grow without bound: the smallest code in use is 3.25e-7.
inline std::uint8_t encode_unsigned(float x, float inverse) {
  return static_cast<std::uint8_t>(code_rank<UnsignedMap>(std::fabs(x * inverse)));
}

inline float decode_unsigned(std::uint8_t code, float scale) {
  const auto position = static_cast<float>(code + 1);
  const std::uint32_t octave = (std::bit_cast<std::uint32_t>(position) >> 23) % 16;
  return std::fma(position, UnsignedMap::kValueSlope[octave] * scale,
                  UnsignedMap::kValueOffset[octave] * scale);
}

}  // namespace spillway::cpu_adam
