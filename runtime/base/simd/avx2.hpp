// Native vectors of AVX2 with FMA and F16C: 8 lanes. portable.hpp says what each function means.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/base/simd/target.hpp"

SPILLWAY_TARGET_BEGIN(SPILLWAY_AVX2)
namespace spillway::simd::avx2 {

using Float = __m256;
using Double = __m256d;
using Half = __m128i;
using Int = __m256i;
using Bytes = __m128i;
inline constexpr std::size_t kWidth = 8;

inline Float set(float x) { return _mm256_set1_ps(x); }
inline Float load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
inline void stream(float* p, Float x) { _mm256_stream_ps(p, x); }
inline void consume(Float x) { asm volatile("" : : "x"(x)); }
inline void fence() { _mm_sfence(); }
inline Half load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline void store_half(void* p, Half x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
inline void stream_half(void* p, Half x) { _mm_stream_si128(static_cast<__m128i*>(p), x); }

inline Float sqrt(Float a) { return _mm256_sqrt_ps(a); }
inline Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
inline Float fnma(Float a, Float b, Float c) { return _mm256_fnmadd_ps(a, b, c); }
inline Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
inline Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
inline Float round(Float a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Float select_negative(Float x, Float a, Float b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}
inline float sum(Float a) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline float largest(Float a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

inline Int set_int(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
inline Int iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
inline Int bits(Float x) { return _mm256_castps_si256(x); }
inline Float from_bits(Int x) { return _mm256_castsi256_ps(x); }
inline Int to_int(Float x) { return _mm256_cvttps_epi32(x); }
inline Float to_float(Int x) { return _mm256_cvtepi32_ps(x); }
inline Int add_int(Int a, Int b) { return _mm256_add_epi32(a, b); }
inline Int mul_int(Int a, Int b) { return _mm256_mullo_epi32(a, b); }
inline Int and_int(Int a, Int b) { return _mm256_and_si256(a, b); }
inline Int or_int(Int a, Int b) { return _mm256_or_si256(a, b); }
inline Int xor_int(Int a, Int b) { return _mm256_xor_si256(a, b); }
inline Int max_unsigned(Int a, Int b) { return _mm256_max_epu32(a, b); }
template <int Count>
inline Int shift_right(Int x) {
  return _mm256_srli_epi32(x, Count);
}
template <int Count>
inline Int shift_right_signed(Int x) {
  return _mm256_srai_epi32(x, Count);
}
template <int Count>
inline Int shift_left(Int x) {
  return _mm256_slli_epi32(x, Count);
}
inline Int join_halves(Int low, Int high) { return _mm256_blend_epi16(low, high, 0xaa); }
inline Int add_to_number(Float x, Int increment) {
  return add_int(bits(x), and_int(increment, bits(_mm256_cmp_ps(x, x, _CMP_ORD_Q))));
}
inline Int one_more_where_at_least(Int count, Float y, Float threshold) {
  return _mm256_sub_epi32(count, bits(_mm256_cmp_ps(y, threshold, _CMP_GE_OQ)));  // less -1
}
inline std::uint32_t largest_lane(Int x) {
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}

inline Float sign(Float a) {
  const Float nonzero = _mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_NEQ_OQ);
  const Int one = or_int(and_int(bits(a), set_int(0x80000000U)), bits(set(1)));
  return _mm256_blendv_ps(a, from_bits(one), nonzero);
}
inline Float with_sign_of(Float x, Float from) {
  return from_bits(xor_int(bits(x), and_int(bits(from), set_int(0x80000000U))));
}

/// Brings together by a permutation what packing leaves in the two 128-bit halves.
inline Half lower_halves(Int packed) {
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0xd8));
}
/// Lower halves of lanes that are below 2^16.
inline Half pack_halves(Int x) { return lower_halves(_mm256_packus_epi32(x, x)); }
inline Int widen_signed(Half x) { return _mm256_cvtepi16_epi32(x); }
inline Half low_half(Int x) { return pack_halves(and_int(x, set_int(0xffff))); }
inline Int load_bytes(const std::byte* p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Int load_signed_bytes(const std::byte* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Bytes pack_signed(Int x) { return lower_halves(_mm256_packs_epi16(x, x)); }
inline Bytes pack_unsigned(Int x) { return lower_halves(_mm256_packus_epi16(x, x)); }
inline void store_bytes(std::byte* p, Bytes x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
}
inline void stream_bytes(std::byte* p, Bytes x) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), x);
}
inline Float even_places(Float a, Float b) {
  const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
}
inline Float odd_places(Float a, Float b) {
  const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
}

/// Selects by the lower three bits of each index.
inline Float permute(Float table, Int index) { return _mm256_permutevar8x32_ps(table, index); }
/// The upper half of each lane times the factor, over 2^16.
inline Int upper_half_times(Int x, std::uint32_t factor) {
  return shift_right<16>(_mm256_mulhi_epu16(x, set_int(factor << 16)));
}
/// `x`, but zero where a equals b.
inline Float zero_where_equal(Int a, Int b, Float x) {
  return from_bits(_mm256_andnot_si256(_mm256_cmpeq_epi32(a, b), bits(x)));
}
/// `x`, but zero where `code`, which is not negative, is zero.
inline Float zero_where_zero(Int code, Float x) {
  return from_bits(_mm256_sign_epi32(bits(x), code));
}

inline Float from_fp16(Half x) { return _mm256_cvtph_ps(x); }
inline Half to_fp16(Float x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Float from_bf16(Half x) { return from_bits(shift_left<16>(_mm256_cvtepu16_epi32(x))); }
inline Half round_bf16(Float x, Int increment) {
  const Int rounded = shift_right<16>(add_int(bits(x), increment));
  const Int quiet = or_int(shift_right<16>(bits(x)), set_int(0x40));
  const Int nan = bits(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return pack_halves(_mm256_blendv_epi8(rounded, quiet, nan));
}

inline Double zero_double() { return _mm256_setzero_pd(); }
inline Double low(Float x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
inline Double high(Float x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
inline Double add_square(Double x, Double sum) { return _mm256_fmadd_pd(x, x, sum); }
inline void store_double(double* p, Double x) { _mm256_storeu_pd(p, x); }

#include "runtime/base/simd/common.inl"
#include "runtime/base/simd/tails.inl"

}  // namespace spillway::simd::avx2
SPILLWAY_TARGET_END
