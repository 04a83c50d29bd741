// The kernels for AVX2 with FMA and F16C: 8 elements a vector.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "cpu_adam/detail/flush_denormals.hpp"
#include "cpu_adam/detail/kernel_set.hpp"
#include "cpu_adam/detail/traffic_set.hpp"
#include "cpu_adam/detail/unroll.hpp"

#define SPILLWAY_TARGET __attribute__((target("avx2,fma,f16c")))

namespace spillway::cpu_adam::detail {
namespace {

/// What the passes need from an instruction set. 16-bit elements are [kWidth] in a `Half`.
struct Lanes {
  using Float = __m256;
  using Double = __m256d;
  using Half = __m128i;
  using Int = __m256i;    ///< 32 bits a lane
  using Bytes = __m128i;  ///< 8 bits of each lane, in the lower half
  static constexpr std::size_t kWidth = 8;

  SPILLWAY_TARGET static Float set(float x) { return _mm256_set1_ps(x); }
  SPILLWAY_TARGET static Float load(const float* p) { return _mm256_loadu_ps(p); }
  SPILLWAY_TARGET static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
  SPILLWAY_TARGET static void stream(float* p, Float x) { _mm256_stream_ps(p, x); }
  /// Uses `x` for nothing, so that its load stays.
  SPILLWAY_TARGET static void consume(Float x) { asm volatile("" : : "x"(x)); }
  SPILLWAY_TARGET static void fence() { _mm_sfence(); }
  SPILLWAY_TARGET static Half load_half(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
  SPILLWAY_TARGET static void store_half(void* p, Half x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), x);
  }
  SPILLWAY_TARGET static void stream_half(void* p, Half x) {
    _mm_stream_si128(static_cast<__m128i*>(p), x);
  }

  SPILLWAY_TARGET static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  SPILLWAY_TARGET static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  SPILLWAY_TARGET static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  SPILLWAY_TARGET static Float sqrt(Float a) { return _mm256_sqrt_ps(a); }
  SPILLWAY_TARGET static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  SPILLWAY_TARGET static Float fnma(Float a, Float b, Float c) { return _mm256_fnmadd_ps(a, b, c); }

  SPILLWAY_TARGET static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  SPILLWAY_TARGET static Float abs(Float a) { return from_bits(and_int(bits(a), set_int(kAbs))); }
  /// -1, 1, or `a` itself where that is zero or NaN.
  SPILLWAY_TARGET static Float sign(Float a) {
    const Float nonzero = _mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_NEQ_OQ);
    const Int one = _mm256_or_si256(and_int(bits(a), set_int(~kAbs)), bits(set(1)));
    return _mm256_blendv_ps(a, from_bits(one), nonzero);
  }

  SPILLWAY_TARGET static Int set_int(std::uint32_t x) {
    return _mm256_set1_epi32(static_cast<int>(x));
  }
  SPILLWAY_TARGET static Int iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  SPILLWAY_TARGET static Int bits(Float x) { return _mm256_castps_si256(x); }
  SPILLWAY_TARGET static Float from_bits(Int x) { return _mm256_castsi256_ps(x); }
  SPILLWAY_TARGET static Int add_int(Int a, Int b) { return _mm256_add_epi32(a, b); }
  SPILLWAY_TARGET static Int mul_int(Int a, Int b) { return _mm256_mullo_epi32(a, b); }
  SPILLWAY_TARGET static Int and_int(Int a, Int b) { return _mm256_and_si256(a, b); }
  SPILLWAY_TARGET static Int xor_int(Int a, Int b) { return _mm256_xor_si256(a, b); }
  SPILLWAY_TARGET static Int max_unsigned(Int a, Int b) { return _mm256_max_epu32(a, b); }
  /// `x` where `from` has no sign, else -x.
  SPILLWAY_TARGET static Float with_sign_of(Float x, Float from) {
    return from_bits(xor_int(bits(x), and_int(bits(from), set_int(~kAbs))));
  }
  template <int Count>
  SPILLWAY_TARGET static Int shift_right(Int x) {
    return _mm256_srli_epi32(x, Count);
  }
  SPILLWAY_TARGET static Int widen_signed(Half x) { return _mm256_cvtepi16_epi32(x); }
  SPILLWAY_TARGET static Half low_half(Int x) { return pack_halves(and_int(x, set_int(0xffff))); }
  SPILLWAY_TARGET static Int load_bytes(const std::byte* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  SPILLWAY_TARGET static Int load_signed_bytes(const std::byte* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  /// Towards zero, saturating at 127.
  SPILLWAY_TARGET static Bytes pack_signed(Float x) {
    const Int whole = _mm256_cvttps_epi32(x);
    const Half halves = lower_halves(_mm256_packs_epi32(whole, whole));
    return _mm_packs_epi16(halves, halves);
  }
  /// Towards zero, of [0, 255].
  SPILLWAY_TARGET static Bytes pack_unsigned(Float x) {
    const Half halves = pack_halves(_mm256_cvttps_epi32(x));
    return _mm_packus_epi16(halves, halves);
  }
  SPILLWAY_TARGET static void store_bytes(std::byte* p, Bytes x) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), x);
  }
  SPILLWAY_TARGET static void stream_bytes(std::byte* p, Bytes x) {
    _mm_stream_si64(reinterpret_cast<long long*>(p), _mm_cvtsi128_si64(x));
  }
  SPILLWAY_TARGET static std::uint32_t largest_lane(Int x) {
    alignas(32) std::uint32_t lanes[kWidth];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), x);
    return *std::max_element(lanes, lanes + kWidth);
  }

  /// See dynamic_map.hpp: the map's slopes and offsets, times a block's scale. Entry 7 also
  /// stands for entry 15: the same of the signed map; of the other the position 1, whose value is
  /// 0.
  struct Values {
    Float slope, offset;
  };
  template <class Map>
  SPILLWAY_TARGET static Values scaled_values(float scale) {
    return {.slope = mul(load(Map::kValueSlope.data()), set(scale)),
            .offset = mul(load(Map::kValueOffset.data()), set(scale))};
  }
  // The permutations look at the lower three bits of their indices.
  SPILLWAY_TARGET static Float decode_signed(const Values& values, Int code) {
    const Float place = _mm256_cvtepi32_ps(code);
    const Int octave = shift_right<23>(bits(place));
    const Int zero = _mm256_cmpeq_epi32(code, set_int(0));
    const Float offset =
        from_bits(_mm256_andnot_si256(zero, bits(_mm256_permutevar8x32_ps(values.offset, octave))));
    return fma(place, _mm256_permutevar8x32_ps(values.slope, octave), with_sign_of(offset, place));
  }
  SPILLWAY_TARGET static Float decode_unsigned(const Values& values, Int position) {
    const Float place = _mm256_cvtepi32_ps(position);
    const Int octave = shift_right<23>(bits(place));
    const Float value = fma(place, _mm256_permutevar8x32_ps(values.slope, octave),
                            _mm256_permutevar8x32_ps(values.offset, octave));
    const Int zero = _mm256_cmpeq_epi32(position, set_int(1));
    return from_bits(_mm256_andnot_si256(zero, bits(value)));
  }
  template <class Map>
  SPILLWAY_TARGET static Float rank(Float y) {
    const Int pair = shift_right<24>(bits(y));
    const Float upper = from_bits(_mm256_slli_epi32(pair, 28));  // the sign: the index's fourth bit
    const Float threshold = _mm256_blendv_ps(
        _mm256_permutevar8x32_ps(load(Map::kOctaves.data()), pair),
        _mm256_permutevar8x32_ps(load(Map::kOctaves.data() + kWidth), pair), upper);
    const Int passed = bits(_mm256_cmp_ps(y, threshold, _CMP_GE_OQ));  // -1
    const Int decade = _mm256_sub_epi32(bits(threshold), passed);
    const Float line = fma(_mm256_permutevar8x32_ps(eight<Map>(Map::kRankSlope), decade), y,
                           _mm256_permutevar8x32_ps(eight<Map>(Map::kRankOffset), decade));
    const Float rank =
        _mm256_min_ps(line, _mm256_permutevar8x32_ps(eight<Map>(Map::kRankCap), decade));
    if constexpr (Map::kThresholdCount == 7) return rank;
    return _mm256_and_ps(rank, _mm256_cmp_ps(y, set(Map::kThresholds[0]), _CMP_GE_OQ));
  }

  SPILLWAY_TARGET static Float from_fp16(Half x) { return _mm256_cvtph_ps(x); }
  SPILLWAY_TARGET static Half to_fp16(Float x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
  }
  SPILLWAY_TARGET static Float from_bf16(Half x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  SPILLWAY_TARGET static Half parameter_to_bf16(Float x) {
    return round_bf16(x, _mm256_set1_epi32(0x8000));
  }
  SPILLWAY_TARGET static Half gradient_to_bf16(Float x) {
    const __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 16), _mm256_set1_epi32(1));
    return round_bf16(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  }

  /// bits + increment, upper half; NaN is made quiet instead, as an addition could end it.
  SPILLWAY_TARGET static Half round_bf16(Float x, Int increment) {
    const Int rounded = shift_right<16>(add_int(bits(x), increment));
    const Int quiet = _mm256_or_si256(shift_right<16>(bits(x)), set_int(0x40));
    const Int nan = bits(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return pack_halves(_mm256_blendv_epi8(rounded, quiet, nan));
  }

  SPILLWAY_TARGET static Double zero_double() { return _mm256_setzero_pd(); }
  SPILLWAY_TARGET static Double low(Float x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
  SPILLWAY_TARGET static Double high(Float x) {
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
  }
  SPILLWAY_TARGET static Double add_square(Double x, Double sum) {
    return _mm256_fmadd_pd(x, x, sum);
  }
  SPILLWAY_TARGET static void store_double(double* p, Double x) { _mm256_storeu_pd(p, x); }

 private:
  static constexpr std::uint32_t kAbs = 0x7fffffffU;

  /// A table of rank lines by the lower three bits of the decade. The signed map has nine entries:
  /// its ninth stands in place of the first, whose rank is zero.
  template <class Map>
  SPILLWAY_TARGET static Float eight(const std::array<float, 16>& table) {
    if constexpr (Map::kThresholdCount == 7) return load(table.data());
    return _mm256_blend_ps(load(table.data()), load(table.data() + kWidth), 1);
  }
  /// Packing works within 128-bit halves; the permutation brings the two results together.
  SPILLWAY_TARGET static Half lower_halves(Int packed) {
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0xd8));
  }
  /// The lower halves of lanes that are below 2^16.
  SPILLWAY_TARGET static Half pack_halves(Int x) { return lower_halves(_mm256_packus_epi32(x, x)); }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail

#include "cpu_adam/detail/vector_entries.inl"

namespace spillway::cpu_adam::detail {
constinit const KernelSet kAvx2Kernels = make_kernel_set<Entries>();
constinit const TrafficSet kAvx2Traffic = make_traffic_set<TrafficEntries>();
}  // namespace spillway::cpu_adam::detail
