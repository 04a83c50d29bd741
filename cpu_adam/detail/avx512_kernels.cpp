// The kernels for AVX-512 (F, BW, VL): 16 elements a vector. Its bf16 instructions flush and round
// by other rules than ours, so bf16 is integer arithmetic here too.

// GCC 12 reports its own headers' deliberately undefined pass-through operands (its PR 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu_adam/detail/flush_denormals.hpp"
#include "cpu_adam/detail/kernel_set.hpp"
#include "cpu_adam/detail/traffic_set.hpp"
#include "cpu_adam/detail/unroll.hpp"

#define SPILLWAY_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")))

namespace spillway::cpu_adam::detail {
namespace {

/// What the passes need from an instruction set. 16-bit elements are [kWidth] in a `Half`.
struct Lanes {
  using Float = __m512;
  using Double = __m512d;
  using Half = __m256i;
  using Int = __m512i;    ///< 32 bits a lane
  using Bytes = __m128i;  ///< 8 bits of each lane
  static constexpr std::size_t kWidth = 16;

  SPILLWAY_TARGET static Float set(float x) { return _mm512_set1_ps(x); }
  SPILLWAY_TARGET static Float load(const float* p) { return _mm512_loadu_ps(p); }
  SPILLWAY_TARGET static void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
  SPILLWAY_TARGET static void stream(float* p, Float x) { _mm512_stream_ps(p, x); }
  /// Uses `x` for nothing, so that its load stays.
  SPILLWAY_TARGET static void consume(Float x) { asm volatile("" : : "v"(x)); }
  SPILLWAY_TARGET static void fence() { _mm_sfence(); }
  SPILLWAY_TARGET static Half load_half(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  SPILLWAY_TARGET static void store_half(void* p, Half x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), x);
  }
  SPILLWAY_TARGET static void stream_half(void* p, Half x) {
    _mm256_stream_si256(static_cast<__m256i*>(p), x);
  }

  SPILLWAY_TARGET static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  SPILLWAY_TARGET static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  SPILLWAY_TARGET static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  SPILLWAY_TARGET static Float sqrt(Float a) { return _mm512_sqrt_ps(a); }
  SPILLWAY_TARGET static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  SPILLWAY_TARGET static Float fnma(Float a, Float b, Float c) { return _mm512_fnmadd_ps(a, b, c); }

  SPILLWAY_TARGET static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  SPILLWAY_TARGET static Float abs(Float a) { return from_bits(and_int(bits(a), set_int(kAbs))); }
  /// -1, 1, or `a` itself where that is zero or NaN.
  SPILLWAY_TARGET static Float sign(Float a) {
    const __mmask16 nonzero = _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NEQ_OQ);
    const Int one = _mm512_or_si512(and_int(bits(a), set_int(~kAbs)), bits(set(1)));
    return _mm512_mask_mov_ps(a, nonzero, from_bits(one));
  }

  SPILLWAY_TARGET static Int set_int(std::uint32_t x) {
    return _mm512_set1_epi32(static_cast<int>(x));
  }
  SPILLWAY_TARGET static Int iota() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  SPILLWAY_TARGET static Int bits(Float x) { return _mm512_castps_si512(x); }
  SPILLWAY_TARGET static Float from_bits(Int x) { return _mm512_castsi512_ps(x); }
  SPILLWAY_TARGET static Int add_int(Int a, Int b) { return _mm512_add_epi32(a, b); }
  SPILLWAY_TARGET static Int mul_int(Int a, Int b) { return _mm512_mullo_epi32(a, b); }
  SPILLWAY_TARGET static Int and_int(Int a, Int b) { return _mm512_and_si512(a, b); }
  SPILLWAY_TARGET static Int xor_int(Int a, Int b) { return _mm512_xor_si512(a, b); }
  SPILLWAY_TARGET static Int max_unsigned(Int a, Int b) { return _mm512_max_epu32(a, b); }
  /// `x` where `from` has no sign, else -x.
  SPILLWAY_TARGET static Float with_sign_of(Float x, Float from) {
    constexpr int kXorOfAnd = 0x78;  // a ^ (b & c)
    return from_bits(_mm512_ternarylogic_epi32(bits(x), bits(from), set_int(~kAbs), kXorOfAnd));
  }
  template <int Count>
  SPILLWAY_TARGET static Int shift_right(Int x) {
    return _mm512_srli_epi32(x, Count);
  }
  SPILLWAY_TARGET static Int widen_signed(Half x) { return _mm512_cvtepi16_epi32(x); }
  SPILLWAY_TARGET static Half low_half(Int x) { return _mm512_cvtepi32_epi16(x); }
  SPILLWAY_TARGET static Int load_bytes(const std::byte* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  SPILLWAY_TARGET static Int load_signed_bytes(const std::byte* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  /// Towards zero, saturating at 127.
  SPILLWAY_TARGET static Bytes pack_signed(Float x) {
    return _mm512_cvtsepi32_epi8(_mm512_cvttps_epi32(x));
  }
  /// Towards zero, of [0, 255].
  SPILLWAY_TARGET static Bytes pack_unsigned(Float x) {
    return _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(x));
  }
  SPILLWAY_TARGET static void store_bytes(std::byte* p, Bytes x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
  }
  SPILLWAY_TARGET static void stream_bytes(std::byte* p, Bytes x) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), x);
  }
  SPILLWAY_TARGET static std::uint32_t largest_lane(Int x) {
    return static_cast<std::uint32_t>(_mm512_reduce_max_epu32(x));
  }

  /// See dynamic_map.hpp: the map's slopes and offsets, times a block's scale.
  struct Values {
    Float slope, offset;
  };
  template <class Map>
  SPILLWAY_TARGET static Values scaled_values(float scale) {
    return {.slope = mul(load(Map::kValueSlope.data()), set(scale)),
            .offset = mul(load(Map::kValueOffset.data()), set(scale))};
  }
  // The permutations look at the lower four bits of their indices.
  SPILLWAY_TARGET static Float decode_signed(const Values& values, Int code) {
    const Float place = _mm512_cvtepi32_ps(code);
    const Int octave = shift_right<23>(bits(place));
    const __mmask16 nonzero = _mm512_test_epi32_mask(code, code);
    const Float offset = _mm512_maskz_permutexvar_ps(nonzero, octave, values.offset);
    return fma(place, _mm512_permutexvar_ps(octave, values.slope), with_sign_of(offset, place));
  }
  SPILLWAY_TARGET static Float decode_unsigned(const Values& values, Int position) {
    const Float place = _mm512_cvtepi32_ps(position);
    const Int octave = shift_right<23>(bits(place));
    return fma(place, _mm512_permutexvar_ps(octave, values.slope),
               _mm512_permutexvar_ps(octave, values.offset));
  }
  template <class Map>
  SPILLWAY_TARGET static Float rank(Float y) {
    const Float threshold =
        _mm512_permutexvar_ps(shift_right<24>(bits(y)), load(Map::kOctaves.data()));
    const __mmask16 passed = _mm512_cmp_ps_mask(y, threshold, _CMP_GE_OQ);
    const Int decade = _mm512_mask_add_epi32(bits(threshold), passed, bits(threshold), set_int(1));
    const Float line = fma(_mm512_permutexvar_ps(decade, load(Map::kRankSlope.data())), y,
                           _mm512_permutexvar_ps(decade, load(Map::kRankOffset.data())));
    return _mm512_min_ps(line, _mm512_permutexvar_ps(decade, load(Map::kRankCap.data())));
  }

  SPILLWAY_TARGET static Float from_fp16(Half x) { return _mm512_cvtph_ps(x); }
  SPILLWAY_TARGET static Half to_fp16(Float x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
  }
  SPILLWAY_TARGET static Float from_bf16(Half x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  SPILLWAY_TARGET static Half parameter_to_bf16(Float x) {
    return round_bf16(x, _mm512_set1_epi32(0x8000));
  }
  SPILLWAY_TARGET static Half gradient_to_bf16(Float x) {
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(x), 16), _mm512_set1_epi32(1));
    return round_bf16(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  }

  /// bits + increment, upper half; NaN is made quiet instead, as an addition could end it.
  SPILLWAY_TARGET static Half round_bf16(Float x, Int increment) {
    const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
    const Int quiet = _mm512_or_si512(bits(x), set_int(0x400000));
    const Int rounded = _mm512_mask_add_epi32(quiet, number, bits(x), increment);
    return _mm512_cvtepi32_epi16(shift_right<16>(rounded));
  }

  SPILLWAY_TARGET static Double zero_double() { return _mm512_setzero_pd(); }
  SPILLWAY_TARGET static Double low(Float x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
  SPILLWAY_TARGET static Double high(Float x) {
    // The float form of this extraction needs AVX512DQ.
    return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
  }
  SPILLWAY_TARGET static Double add_square(Double x, Double sum) {
    return _mm512_fmadd_pd(x, x, sum);
  }
  SPILLWAY_TARGET static void store_double(double* p, Double x) { _mm512_storeu_pd(p, x); }

 private:
  static constexpr std::uint32_t kAbs = 0x7fffffffU;
};

}  // namespace
}  // namespace spillway::cpu_adam::detail

#include "cpu_adam/detail/vector_entries.inl"

namespace spillway::cpu_adam::detail {
constinit const KernelSet kAvx512Kernels = make_kernel_set<Entries>();
constinit const TrafficSet kAvx512Traffic = make_traffic_set<TrafficEntries>();
}  // namespace spillway::cpu_adam::detail
