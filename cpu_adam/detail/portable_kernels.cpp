// The kernels in GCC's and clang's vector extensions: 4 elements a vector, no intrinsics. The fast
// path of processors other than x86-64 (ARM NEON); on x86-64 a third witness of the same bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu_adam/detail/flush_denormals.hpp"
#include "cpu_adam/detail/kernel_set.hpp"
#include "cpu_adam/detail/traffic_set.hpp"
#include "cpu_adam/detail/unroll.hpp"

#define SPILLWAY_TARGET

namespace spillway::cpu_adam::detail {
namespace {

/// What the passes need from an instruction set. 16-bit elements are [kWidth] in a `Half`.
struct Lanes {
  using Float = float __attribute__((vector_size(16)));
  using Double = double __attribute__((vector_size(16)));
  using Half = std::uint16_t __attribute__((vector_size(8)));
  using Int = std::uint32_t __attribute__((vector_size(16)));
  using Signed = std::int32_t __attribute__((vector_size(16)));
  using Bytes = Int;  ///< the lower 8 bits of each lane
  static constexpr std::size_t kWidth = 4;

  static Float set(float x) { return Float{x, x, x, x}; }
  static Float load(const float* p) { return read<Float>(p); }
  static void store(float* p, Float x) { std::memcpy(p, &x, sizeof x); }
  static void stream(float* p, Float x) { store(p, x); }
  /// Uses `x` for nothing, so that its load stays.
  static void consume(Float x) {
#if defined(__x86_64__)
    asm volatile("" : : "x"(x));
#else
    asm volatile("" : : "w"(x));
#endif
  }
  static void fence() {}
  static Half load_half(const void* p) { return read<Half>(p); }
  static void store_half(void* p, Half x) { std::memcpy(p, &x, sizeof x); }
  static void stream_half(void* p, Half x) { store_half(p, x); }

  static Float add(Float a, Float b) { return a + b; }
  static Float mul(Float a, Float b) { return a * b; }
  static Float div(Float a, Float b) { return a / b; }
  static Float sqrt(Float a) {
    return Float{std::sqrt(a[0]), std::sqrt(a[1]), std::sqrt(a[2]), std::sqrt(a[3])};
  }
  static Float fma(Float a, Float b, Float c) {
    return Float{std::fma(a[0], b[0], c[0]), std::fma(a[1], b[1], c[1]), std::fma(a[2], b[2], c[2]),
                 std::fma(a[3], b[3], c[3])};
  }
  static Float fnma(Float a, Float b, Float c) { return fma(-a, b, c); }
  static Float max(Float a, Float b) { return choose(a > b, a, b); }
  static Float abs(Float a) { return from_bits(bits(a) & kAbs); }
  /// -1, 1, or `a` itself where that is zero or NaN.
  static Float sign(Float a) {
    const Float zero = set(0);
    return choose((a < zero) | (a > zero), from_bits((bits(a) & ~kAbs) | bits(set(1))), a);
  }

  static Int set_int(std::uint32_t x) { return Int{x, x, x, x}; }
  static Int iota() { return Int{0, 1, 2, 3}; }
  static Int bits(Float x) { return std::bit_cast<Int>(x); }
  static Float from_bits(Int x) { return std::bit_cast<Float>(x); }
  static Int add_int(Int a, Int b) { return a + b; }
  static Int mul_int(Int a, Int b) { return a * b; }
  static Int and_int(Int a, Int b) { return a & b; }
  static Int xor_int(Int a, Int b) { return a ^ b; }
  static Int max_unsigned(Int a, Int b) { return choose_int(a > b, a, b); }
  /// `x` where `from` has no sign, else -x.
  static Float with_sign_of(Float x, Float from) {
    return from_bits(bits(x) ^ (bits(from) & ~kAbs));
  }
  template <int Count>
  static Int shift_right(Int x) {
    return x >> Count;
  }
  static Int widen_signed(Half x) {
    return std::bit_cast<Int>(std::bit_cast<Signed>(widen_half(x) << 16) >> 16);
  }
  static Half low_half(Int x) {
    return Half{static_cast<std::uint16_t>(x[0]), static_cast<std::uint16_t>(x[1]),
                static_cast<std::uint16_t>(x[2]), static_cast<std::uint16_t>(x[3])};
  }
  static Int load_bytes(const std::byte* p) {
    return Int{static_cast<std::uint32_t>(p[0]), static_cast<std::uint32_t>(p[1]),
               static_cast<std::uint32_t>(p[2]), static_cast<std::uint32_t>(p[3])};
  }
  static Int load_signed_bytes(const std::byte* p) {
    return std::bit_cast<Int>(std::bit_cast<Signed>(load_bytes(p) << 24) >> 24);
  }
  /// Towards zero, saturating at 127.
  static Bytes pack_signed(Float x) { return pack_unsigned(choose(x < set(127), x, set(127))); }
  /// Towards zero, of [0, 255].
  static Bytes pack_unsigned(Float x) {
    return std::bit_cast<Int>(__builtin_convertvector(x, Signed));
  }
  static void store_bytes(std::byte* p, Bytes x) {
    for (std::size_t k = 0; k < kWidth; ++k) p[k] = static_cast<std::byte>(x[k]);
  }
  static void stream_bytes(std::byte* p, Bytes x) { store_bytes(p, x); }
  static std::uint32_t largest_lane(Int x) {
    return std::max(std::max(x[0], x[1]), std::max(x[2], x[3]));
  }

  /// See dynamic_map.hpp: the map's slopes and offsets, times a block's scale.
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
  static Float decode_signed(const Values& values, Int code) {
    const Float place = __builtin_convertvector(signed_of(code), Float);
    const Int octave = (bits(place) >> 23) % 16;
    const Float offset = choose(code != 0, look_up(values.offset, octave), set(0));
    return fma(place, look_up(values.slope, octave), with_sign_of(offset, place));
  }
  static Float decode_unsigned(const Values& values, Int position) {
    const Float place = __builtin_convertvector(position, Float);
    const Int octave = (bits(place) >> 23) % 16;
    return fma(place, look_up(values.slope, octave), look_up(values.offset, octave));
  }
  template <class Map>
  static Float rank(Float y) {
    Int decade = set_int(0);
    for (const float threshold : Map::kThresholds) {
      decade -= std::bit_cast<Int>(y >= set(threshold));  // a lane of all ones is -1
    }
    const Float line =
        fma(look_up(Map::kRankSlope.data(), decade), y, look_up(Map::kRankOffset.data(), decade));
    const Float cap = look_up(Map::kRankCap.data(), decade);
    return choose(line < cap, line, cap);
  }

  static Float from_fp16(Half x) {
    return Float{spillway::from_fp16(x[0]), spillway::from_fp16(x[1]), spillway::from_fp16(x[2]),
                 spillway::from_fp16(x[3])};
  }
  static Half to_fp16(Float x) {
    return Half{spillway::to_fp16(x[0]), spillway::to_fp16(x[1]), spillway::to_fp16(x[2]),
                spillway::to_fp16(x[3])};
  }
  static Float from_bf16(Half x) { return from_bits(widen_half(x) << 16); }
  static Half parameter_to_bf16(Float x) { return round_bf16(x, set_int(0x8000)); }
  static Half gradient_to_bf16(Float x) {
    return round_bf16(x, ((bits(x) >> 16) & set_int(1)) + set_int(0x7fff));
  }
  /// bits + increment, upper half; NaN is made quiet instead, as an addition could end it.
  static Half round_bf16(Float x, Int increment) {
    const Int rounded = (bits(x) + increment) >> 16;
    return low_half(choose_int(x == x, rounded, (bits(x) >> 16) | set_int(0x40)));
  }

  static Double zero_double() { return Double{0, 0}; }
  static Double low(Float x) { return Double{x[0], x[1]}; }
  static Double high(Float x) { return Double{x[2], x[3]}; }
  static Double add_square(Double x, Double sum) { return x * x + sum; }  // the square is exact
  static void store_double(double* p, Double x) { std::memcpy(p, &x, sizeof x); }

 private:
  static constexpr std::uint32_t kAbs = 0x7fffffffU;

  template <class Vector>
  static Vector read(const void* p) {
    Vector x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static Signed signed_of(Int x) { return std::bit_cast<Signed>(x); }
  static Int widen_half(Half x) { return __builtin_convertvector(x, Int); }
  static Int choose_int(Signed mask, Int a, Int b) {
    const auto chosen = std::bit_cast<Int>(mask);
    return (a & chosen) | (b & ~chosen);
  }
  static Float choose(Signed mask, Float a, Float b) {
    return from_bits(choose_int(mask, bits(a), bits(b)));
  }
  static Float look_up(const float* table, Int index) {
    return Float{table[index[0]], table[index[1]], table[index[2]], table[index[3]]};
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail

#include "cpu_adam/detail/vector_entries.inl"

namespace spillway::cpu_adam::detail {
constinit const KernelSet kPortableKernels = make_kernel_set<Entries>();
constinit const TrafficSet kPortableTraffic = make_traffic_set<TrafficEntries>();
}  // namespace spillway::cpu_adam::detail
