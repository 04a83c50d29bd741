// The kernels for AVX2 with FMA and F16C: 8 elements a vector.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "cpu_adam/detail/kernel_set.hpp"
#include "cpu_adam/detail/traffic_set.hpp"
#include "cpu_adam/detail/unroll.hpp"
#include "runtime/base/simd/avx2.hpp"
#include "runtime/base/simd/flush_denormals.hpp"

SPILLWAY_TARGET_BEGIN(SPILLWAY_AVX2)
namespace spillway::cpu_adam::detail {
namespace {

namespace lanes = simd::avx2;

/// See dynamic_map.hpp.
struct Codes {
  /// The map's slopes and offsets, times a block's scale. Entry 7 also stands for entry 15: the
  /// same of the signed map; of the other the position 1, whose value is 0.
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
    const lanes::Float offset =
        lanes::zero_where_equal(code, lanes::set_int(0), lanes::permute(values.offset, octave));
    return lanes::fma(place, lanes::permute(values.slope, octave),
                      lanes::with_sign_of(offset, place));
  }
  static lanes::Float decode_unsigned(const Values& values, lanes::Int code) {
    const lanes::Float place = lanes::to_float(lanes::add_int(code, lanes::set_int(1)));
    const lanes::Int octave = lanes::shift_right<23>(lanes::bits(place));
    const lanes::Float value = lanes::fma(place, lanes::permute(values.slope, octave),
                                          lanes::permute(values.offset, octave));
    return lanes::zero_where_zero(code, value);
  }
  template <class Map>
  static lanes::Float rank(lanes::Float y) {
    const lanes::Int range = lanes::upper_half_times(lanes::bits(y), Map::kRangeFactor);
    const lanes::Float threshold = lanes::permute(lanes::load(Map::kRanges.data()), range);
    const lanes::Int decade = lanes::one_more_where_at_least(lanes::bits(threshold), y, threshold);
    const lanes::Float line =
        lanes::fma(entry<Map>(Map::kRankSlope, decade), y, entry<Map>(Map::kRankOffset, decade));
    return lanes::min(line, entry<Map>(Map::kRankCap, decade));
  }

 private:
  /// An entry of a table of rank lines by the lower three bits of the decade. The signed map's
  /// first entry is for what its second knows too: its ninth stands there.
  template <class Map>
  static lanes::Float entry(const std::array<float, 16>& table, lanes::Int decade) {
    lanes::Float eight = lanes::load(table.data());
    if constexpr (Map::kThresholdCount == 8) eight[0] = table[lanes::kWidth];
    return lanes::permute(eight, decade);
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail

#include "cpu_adam/detail/vector_entries.inl"
SPILLWAY_TARGET_END

namespace spillway::cpu_adam::detail {
constinit const KernelSet kAvx2Kernels = make_kernel_set<Entries>();
constinit const TrafficSet kAvx2Traffic = make_traffic_set<TrafficEntries>();
}  // namespace spillway::cpu_adam::detail
