// Sixteen fp32 lanes in two AVX2 registers. Included inside SPILLWAY_TARGET_BEGIN by
// kernels_avx2.cpp only. See simd_portable.hpp for what each function means.
#pragma once

namespace spillway::model::host::SPILLWAY_SIMD {

inline constexpr std::size_t kLanes = 16;
inline constexpr std::size_t kTileVectors = 1;

struct F {
  __m256 low, high;
};

inline __m128i to_bf16_bits(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  const __m256i chosen = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
  const __m256i upper = _mm256_srli_epi32(chosen, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}
inline __m256 from_bf16_bits(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline __m128i load_bits(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline void store_bits(void* p, __m128i bits) { _mm_storeu_si128(static_cast<__m128i*>(p), bits); }

inline F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline F load(const Bf16* p) {
  return {from_bf16_bits(load_bits(p)), from_bf16_bits(load_bits(p + 8))};
}
inline F load(const Fp16* p) {
  return {_mm256_cvtph_ps(load_bits(p)), _mm256_cvtph_ps(load_bits(p + 8))};
}
inline void store(float* p, F a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline void store(Bf16* p, F a) {
  store_bits(p, to_bf16_bits(a.low));
  store_bits(p + 8, to_bf16_bits(a.high));
}
inline void store(Fp16* p, F a) {
  store_bits(p, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  store_bits(p + 8, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Tails go through a buffer: AVX2 masks 32-bit loads only, and tails are rare.
template <class T>
inline F load_part(const T* p, std::size_t count, float fill = 0) {
  T buffer[kLanes] = {};
  __builtin_memcpy(buffer, p, count * sizeof(T));
  float values[kLanes];
  store(values, load(buffer));
  for (std::size_t i = count; i < kLanes; ++i) values[i] = fill;
  return load(values);
}
template <class T>
inline void store_part(T* p, F a, std::size_t count) {
  T buffer[kLanes];
  store(buffer, a);
  __builtin_memcpy(p, buffer, count * sizeof(T));
}
inline F operator+(F a, F b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline F operator-(F a, F b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline F operator*(F a, F b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline F operator/(F a, F b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F max(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline F abs(F a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline F round(F a) {
  return {_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline __m256 power_of_two(__m256 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
inline F power_of_two(F n) { return {power_of_two(n.low), power_of_two(n.high)}; }
inline F select_negative(F x, F a, F b) {
  const __m256 zero = _mm256_setzero_ps();
  return {_mm256_blendv_ps(b.low, a.low, _mm256_cmp_ps(x.low, zero, _CMP_LT_OQ)),
          _mm256_blendv_ps(b.high, a.high, _mm256_cmp_ps(x.high, zero, _CMP_LT_OQ))};
}
inline float sum(F a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline float largest(F a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

}  // namespace spillway::model::host::SPILLWAY_SIMD
