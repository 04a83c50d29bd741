// The kernels in vector extensions of the compilers: 4 elements a vector.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu_adam/detail/kernel_set.hpp"
#include "cpu_adam/detail/traffic_set.hpp"
#include "cpu_adam/detail/unroll.hpp"
#include "runtime/base/simd/flush_denormals.hpp"
#include "runtime/base/simd/portable.hpp"

namespace spillway::cpu_adam::detail {
namespace {

namespace lanes = simd::portable;

/// See dynamic_map.hpp.
struct Codes {
  /// The map's slopes and offsets, times a block's scale.
  struct Values {
    float slope[16], offset[16];
  };
  template <class Map>
  static Values scaled_values(float scale) {
    Values values;
    for (std::size_t k = 0; k < 16; ++k) {
      values.slope[k] = Map::kValueSlope[k] * scale;
      values.offset[k] = Map::kValueOffset[k] * scale;
    }
    return values;
  }
  static lanes::Float decode_signed(const Values& values, lanes::Int code) {
    const lanes::Float place = lanes::to_float(code);
    const lanes::Int octave = (lanes::bits(place) >> 23) % 16;
    const lanes::Float offset =
        lanes::choose(code != 0, lanes::look_up(values.offset, octave), lanes::set(0));
    return lanes::fma(place, lanes::look_up(values.slope, octave),
                      lanes::with_sign_of(offset, place));
  }
  static lanes::Float decode_unsigned(const Values& values, lanes::Int code) {
    const lanes::Float place = lanes::to_float(lanes::add_int(code, lanes::set_int(1)));
    const lanes::Int octave = (lanes::bits(place) >> 23) % 16;
    return lanes::fma(place, lanes::look_up(values.slope, octave),
                      lanes::look_up(values.offset, octave));
  }
  template <class Map>
  static lanes::Float rank(lanes::Float y) {
    lanes::Int decade = lanes::set_int(0);
    for (const float threshold : Map::kThresholds) {
      decade = lanes::one_more_where_at_least(decade, y, lanes::set(threshold));
    }
    const lanes::Float line = lanes::fma(lanes::look_up(Map::kRankSlope.data(), decade), y,
                                         lanes::look_up(Map::kRankOffset.data(), decade));
    return lanes::min(line, lanes::look_up(Map::kRankCap.data(), decade));
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail

#include "cpu_adam/detail/vector_entries.inl"

namespace spillway::cpu_adam::detail {
constinit const KernelSet kPortableKernels = make_kernel_set<Entries>();
constinit const TrafficSet kPortableTraffic = make_traffic_set<TrafficEntries>();
}  // namespace spillway::cpu_adam::detail
