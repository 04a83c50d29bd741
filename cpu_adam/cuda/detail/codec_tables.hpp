// The codes of format int8 from tables at an address, as a kernel of a device wants them: in memory
// that its lanes can index each on their own. Bits: those of cpu_adam/codec.hpp.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu_adam/dynamic_map.hpp"
#include "runtime/base/host_device.hpp"

namespace spillway::cpu_adam::cuda::detail {

/// Tables of one map of dynamic_map.hpp.
struct MapTables {
  float octave[16];
  float rank_slope[16], rank_offset[16], rank_cap[16];
  float value_slope[16], value_offset[16];
  float smallest;
};

struct CodecTables {
  MapTables m;  ///< signed
  MapTables v;  ///< unsigned
};

template <class Map>
constexpr MapTables make_map_tables() {
  MapTables tables{};
  for (std::size_t k = 0; k < 16; ++k) {
    tables.octave[k] = Map::kOctaves[k];
    tables.rank_slope[k] = Map::kRankSlope[k];
    tables.rank_offset[k] = Map::kRankOffset[k];
    tables.rank_cap[k] = Map::kRankCap[k];
    tables.value_slope[k] = Map::kValueSlope[k];
    tables.value_offset[k] = Map::kValueOffset[k];
  }
  tables.smallest = Map::kSmallest;
  return tables;
}

constexpr CodecTables make_codec_tables() {
  return {.m = make_map_tables<SignedMap>(), .v = make_map_tables<UnsignedMap>()};
}

/// Ranks as codec.hpp's does; y is a NaN or in [0, 2). Its octave has one threshold, or one that is
/// out of reach, and both know how many lie below.
SPILLWAY_HOST_DEVICE inline std::uint32_t code_rank(const MapTables& map, float y) {
  const float clamped = y > map.smallest ? y : map.smallest;  // NaN becomes the smallest
  const float threshold = map.octave[(std::bit_cast<std::uint32_t>(clamped) >> 24) % 16];
  const std::uint32_t below = std::bit_cast<std::uint32_t>(threshold) % 16;
  const std::uint32_t decade = below + (clamped >= threshold ? 1 : 0);
  const float line = std::fma(map.rank_slope[decade], clamped, map.rank_offset[decade]);
  const float cap = map.rank_cap[decade];
  return static_cast<std::uint32_t>(line < cap ? line : cap);
}

SPILLWAY_HOST_DEVICE inline std::int8_t encode_m(const MapTables& map, float x, float inverse) {
  const int rank = static_cast<int>(code_rank(map, std::fabs(x * inverse)));
  const bool negative = std::bit_cast<std::uint32_t>(x) >> 31 != 0;
  const int smaller = rank < 127 ? rank : 127;
  return static_cast<std::int8_t>(negative ? smaller : -rank);
}

SPILLWAY_HOST_DEVICE inline std::uint8_t encode_v(const MapTables& map, float x, float inverse) {
  return static_cast<std::uint8_t>(code_rank(map, std::fabs(x * inverse)));
}

/// Returns slope * position + offset in units of `scale`.
SPILLWAY_HOST_DEVICE inline float value_at(const MapTables& map, int number, float scale) {
  const auto position = static_cast<float>(number);
  const std::uint32_t octave = (std::bit_cast<std::uint32_t>(position) >> 23) % 16;
  return std::fma(position, map.value_slope[octave] * scale, map.value_offset[octave] * scale);
}

SPILLWAY_HOST_DEVICE inline float decode_m(const MapTables& map, std::int8_t code, float scale) {
  if (code == 0) return 0.0F * scale;  // NaN of a block that is spoiled
  const float value = value_at(map, code < 0 ? -static_cast<int>(code) : code, scale);
  return code < 0 ? value : -value;
}

SPILLWAY_HOST_DEVICE inline float decode_v(const MapTables& map, std::uint8_t code, float scale) {
  return value_at(map, code + 1, scale);
}

}  // namespace spillway::cpu_adam::cuda::detail
