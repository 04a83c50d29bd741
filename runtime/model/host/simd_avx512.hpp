// Sixteen fp32 lanes in one AVX-512 register. Included inside SPILLWAY_TARGET_BEGIN by
// kernels_avx512.cpp only. See simd_portable.hpp for what each function means.
#pragma once

namespace spillway::model::host::SPILLWAY_SIMD {

inline constexpr std::size_t kLanes = 16;
inline constexpr std::size_t kTileVectors = 4;

using F = __m512;

inline __mmask16 first_lanes(std::size_t count) {
  return static_cast<__mmask16>((1U << count) - 1U);
}
inline __m256i to_bf16_bits(F a) {
  const __m512i bits = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
inline F from_bf16_bits(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline F set(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline F load(const Bf16* p) {
  return from_bf16_bits(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F load(const Fp16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F load_part(const float* p, std::size_t count, float fill = 0) {
  return _mm512_mask_loadu_ps(set(fill), first_lanes(count), p);
}
inline F load_part(const Bf16* p, std::size_t count, float fill = 0) {
  const F a = from_bf16_bits(_mm256_maskz_loadu_epi16(first_lanes(count), p));
  return _mm512_mask_mov_ps(set(fill), first_lanes(count), a);
}
inline F load_part(const Fp16* p, std::size_t count, float fill = 0) {
  const F a = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), p));
  return _mm512_mask_mov_ps(set(fill), first_lanes(count), a);
}
inline void store(float* p, F a) { _mm512_storeu_ps(p, a); }
inline void store(Bf16* p, F a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_bits(a));
}
inline void store(Fp16* p, F a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store_part(float* p, F a, std::size_t count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), a);
}
inline void store_part(Bf16* p, F a, std::size_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), to_bf16_bits(a));
}
inline void store_part(Fp16* p, F a, std::size_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count),
                           _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F abs(F a) { return _mm512_abs_ps(a); }
inline F round(F a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline F power_of_two(F n) {
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}
inline F select_negative(F x, F a, F b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), a);
}
inline __m256 high_half(F a) { return _mm512_extractf32x8_ps(a, 1); }
inline float sum(F a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), high_half(a));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline float largest(F a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), high_half(a));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

}  // namespace spillway::model::host::SPILLWAY_SIMD
