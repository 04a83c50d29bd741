// The kernels for AVX-512: 16 elements a vector.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "cpu_adam/detail/kernel_set.hpp"
#include "cpu_adam/detail/traffic_set.hpp"
#include "cpu_adam/detail/unroll.hpp"
#include "runtime/base/simd/avx512.hpp"
#include "runtime/base/simd/flush_denormals.hpp"

SPILLWAY_TARGET_BEGIN(SPILLWAY_AVX512)
namespace spillway::cpu_adam::detail {
namespace {

namespace lanes = simd::avx512;

/// See dynamic_map.hpp.
struct Codes {
  /// The map's slopes and offsets, times a block's scale.
  struct Values {
    lanes::Float slope, offset;
  };
  template <class Map>
  static Values scaled_values(float scale) {
    return {.slope = lanes::load(Map::kValueSlope.data()) * lanes::set(scale),
            .offset = lanes::load(Map::kValueOffset.data()) * lanes::set(scale)};
  }
  static lanes::Float decode_signed(const Values& values, lanes::Int code) {
    const lanes::Float place = lanes::to_float(code);
    const lanes::Int octave = lanes::shift_right<23>(lanes::bits(place));
    const lanes::Float offset = lanes::permute_unless_zero(code, values.offset, octave);
    return lanes::fma(place, lanes::permute(values.slope, octave),
                      lanes::with_sign_of(offset, place));
  }
  static lanes::Float decode_unsigned(const Values& values, lanes::Int code) {
    const lanes::Float place = lanes::to_float(lanes::add_int(code, lanes::set_int(1)));
    const lanes::Int octave = lanes::shift_right<23>(lanes::bits(place));
    return lanes::fma(place, lanes::permute(values.slope, octave),
                      lanes::permute(values.offset, octave));
  }
  template <class Map>
  static lanes::Float rank(lanes::Float y) {
    const lanes::Float threshold =
        lanes::permute(lanes::load(Map::kOctaves.data()), lanes::shift_right<24>(lanes::bits(y)));
    const lanes::Int decade = lanes::one_more_where_at_least(lanes::bits(threshold), y, threshold);
    const lanes::Float line =
        lanes::fma(entry(Map::kRankSlope, decade), y, entry(Map::kRankOffset, decade));
    return lanes::min(line, entry(Map::kRankCap, decade));
  }

 private:
  static lanes::Float entry(const std::array<float, 16>& table, lanes::Int decade) {
    return lanes::permute(lanes::load(table.data()), decade);
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail

#include "cpu_adam/detail/vector_entries.inl"
SPILLWAY_TARGET_END

namespace spillway::cpu_adam::detail {
constinit const KernelSet kAvx512Kernels = make_kernel_set<Entries>();
constinit const TrafficSet kAvx512Traffic = make_traffic_set<TrafficEntries>();
}  // namespace spillway::cpu_adam::detail
