// Native vectors of AVX-512 (F, BW, DQ, VL): 16 lanes. portable.hpp says what each function means.
// Its bf16 instructions flush and round by other rules than ours, so bf16 is integer arithmetic
// here too.
#pragma once

// GCC 12 reports its own headers' deliberately undefined pass-through operands (its PR 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/base/simd/avx2.hpp"

SPILLWAY_TARGET_BEGIN(SPILLWAY_AVX512)
namespace spillway::simd::avx512 {

using Float = __m512;
using Double = __m512d;
using Half = __m256i;
using Int = __m512i;
using Bytes = __m256i;
inline constexpr std::size_t kWidth = 16;

inline Float set(float x) { return _mm512_set1_ps(x); }
inline Float load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
inline void stream(float* p, Float x) { _mm512_stream_ps(p, x); }
inline void consume(Float x) { asm volatile("" : : "v"(x)); }
inline void fence() { _mm_sfence(); }
inline Half load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_half(void* p, Half x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline void stream_half(void* p, Half x) { _mm256_stream_si256(static_cast<__m256i*>(p), x); }

inline Float sqrt(Float a) { return _mm512_sqrt_ps(a); }
inline Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
inline Float fnma(Float a, Float b, Float c) { return _mm512_fnmadd_ps(a, b, c); }
inline Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
inline Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
inline Float round(Float a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Float select_negative(Float x, Float a, Float b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), a);
}
inline __m256 low_part(Float a) { return _mm512_castps512_ps256(a); }
inline __m256 high_part(Float a) { return _mm512_extractf32x8_ps(a, 1); }
inline float sum(Float a) { return avx2::sum(_mm256_add_ps(low_part(a), high_part(a))); }
inline float largest(Float a) { return avx2::largest(_mm256_max_ps(low_part(a), high_part(a))); }

inline Int set_int(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
inline Int iota() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline Int bits(Float x) { return _mm512_castps_si512(x); }
inline Float from_bits(Int x) { return _mm512_castsi512_ps(x); }
inline Int to_int(Float x) { return _mm512_cvttps_epi32(x); }
inline Float to_float(Int x) { return _mm512_cvtepi32_ps(x); }
inline Int add_int(Int a, Int b) { return _mm512_add_epi32(a, b); }
inline Int mul_int(Int a, Int b) { return _mm512_mullo_epi32(a, b); }
inline Int and_int(Int a, Int b) { return _mm512_and_si512(a, b); }
inline Int or_int(Int a, Int b) { return _mm512_or_si512(a, b); }
inline Int xor_int(Int a, Int b) { return _mm512_xor_si512(a, b); }
inline Int max_unsigned(Int a, Int b) { return _mm512_max_epu32(a, b); }
template <int Count>
inline Int shift_right(Int x) {
  return _mm512_srli_epi32(x, Count);
}
template <int Count>
inline Int shift_right_signed(Int x) {
  return _mm512_srai_epi32(x, Count);
}
template <int Count>
inline Int shift_left(Int x) {
  return _mm512_slli_epi32(x, Count);
}
inline Int join_halves(Int low, Int high) {
  constexpr int kFirstChooses = 0xca;  // a ? b : c
  return _mm512_ternarylogic_epi32(set_int(0xffff), low, high, kFirstChooses);
}
inline Int add_to_number(Float x, Int increment) {
  const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  return _mm512_mask_add_epi32(bits(x), number, bits(x), increment);
}
inline Int one_more_where_at_least(Int count, Float y, Float threshold) {
  const __mmask16 passed = _mm512_cmp_ps_mask(y, threshold, _CMP_GE_OQ);
  return _mm512_mask_add_epi32(count, passed, count, set_int(1));
}
inline std::uint32_t largest_lane(Int x) {
  return static_cast<std::uint32_t>(_mm512_reduce_max_epu32(x));
}

inline Float sign(Float a) {
  const __mmask16 nonzero = _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NEQ_OQ);
  const Int one = or_int(and_int(bits(a), set_int(0x80000000U)), bits(set(1)));
  return _mm512_mask_mov_ps(a, nonzero, from_bits(one));
}
inline Float with_sign_of(Float x, Float from) {
  constexpr int kXorOfAnd = 0x78;  // a ^ (b & c)
  return from_bits(_mm512_ternarylogic_epi32(bits(x), bits(from), set_int(0x80000000U), kXorOfAnd));
}

inline Int widen_signed(Half x) { return _mm512_cvtepi16_epi32(x); }
inline Half low_half(Int x) { return _mm512_cvtepi32_epi16(x); }
inline Int load_bytes(const std::byte* p) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Int load_signed_bytes(const std::byte* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Bytes pack_signed(Int x) { return _mm512_cvtsepi16_epi8(x); }
inline Bytes pack_unsigned(Int x) { return _mm512_cvtepi16_epi8(x); }
inline void store_bytes(std::byte* p, Bytes x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
}
inline void stream_bytes(std::byte* p, Bytes x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), x);
}
inline Float even_places(Float a, Float b) {
  const Int even = _mm512_slli_epi32(iota(), 1);  // from 16 on: places of b
  return _mm512_permutex2var_ps(a, even, b);
}
inline Float odd_places(Float a, Float b) {
  const Int odd = _mm512_add_epi32(_mm512_slli_epi32(iota(), 1), set_int(1));
  return _mm512_permutex2var_ps(a, odd, b);
}

/// Selects by the lower four bits of each index.
inline Float permute(Float table, Int index) { return _mm512_permutexvar_ps(index, table); }
/// Selects likewise; zero where `code` is zero.
inline Float permute_unless_zero(Int code, Float table, Int index) {
  return _mm512_maskz_permutexvar_ps(_mm512_test_epi32_mask(code, code), index, table);
}

inline Float from_fp16(Half x) { return _mm512_cvtph_ps(x); }
inline Half to_fp16(Float x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Float from_bf16(Half x) { return from_bits(shift_left<16>(_mm512_cvtepu16_epi32(x))); }
inline Half round_bf16(Float x, Int increment) {
  const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  const Int quiet = or_int(bits(x), set_int(0x400000));
  const Int rounded = _mm512_mask_add_epi32(quiet, number, bits(x), increment);
  return low_half(shift_right<16>(rounded));
}

inline Double zero_double() { return _mm512_setzero_pd(); }
inline Double low(Float x) { return _mm512_cvtps_pd(low_part(x)); }
inline Double high(Float x) { return _mm512_cvtps_pd(high_part(x)); }
inline Double add_square(Double x, Double sum) { return _mm512_fmadd_pd(x, x, sum); }
inline void store_double(double* p, Double x) { _mm512_storeu_pd(p, x); }

inline __mmask16 first_lanes(std::size_t count) {
  return static_cast<__mmask16>((1U << count) - 1U);
}
inline Float load_first(std::size_t count, const float* p, Float rest) {
  return _mm512_mask_loadu_ps(rest, first_lanes(count), p);
}
inline Half load_half_first(std::size_t count, const void* p) {
  return _mm256_maskz_loadu_epi16(first_lanes(count), p);
}
inline void store_first(std::size_t count, float* p, Float x) {
  _mm512_mask_storeu_ps(p, first_lanes(count), x);
}
inline void store_half_first(std::size_t count, void* p, Half x) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), x);
}
inline Float first(std::size_t count, Float x, Float rest) {
  return _mm512_mask_mov_ps(rest, first_lanes(count), x);
}

#include "runtime/base/simd/common.inl"

}  // namespace spillway::simd::avx512
SPILLWAY_TARGET_END
