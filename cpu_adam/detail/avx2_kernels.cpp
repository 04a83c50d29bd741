// The kernels for AVX2 with FMA and F16C: 8 elements a vector.
#include <immintrin.h>

#include "cpu_adam/detail/flush_denormals.hpp"
#include "cpu_adam/detail/kernel_set.hpp"

#define SPILLWAY_TARGET __attribute__((target("avx2,fma,f16c")))

namespace spillway::cpu_adam::detail {
namespace {

/// What the passes need from an instruction set. 16-bit elements are [kWidth] in a `Half`.
struct Lanes {
  using Float = __m256;
  using Double = __m256d;
  using Half = __m128i;
  static constexpr std::size_t kWidth = 8;

  SPILLWAY_TARGET static Float set(float x) { return _mm256_set1_ps(x); }
  SPILLWAY_TARGET static Float load(const float* p) { return _mm256_loadu_ps(p); }
  SPILLWAY_TARGET static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
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
  /// bits + increment, upper half; NaN is made quiet instead, as an addition could end it.
  SPILLWAY_TARGET static Half round_bf16(Float x, __m256i increment) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, increment), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i wide = _mm256_blendv_epi8(rounded, quiet, nan);
    // Packing works within 128-bit halves; the permutation brings the two results together.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0xd8);
    return _mm256_castsi256_si128(packed);
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail

#include "cpu_adam/detail/gradient_pass.inl"
#include "cpu_adam/detail/update_pass.inl"
#include "cpu_adam/detail/vector_entries.inl"

namespace spillway::cpu_adam::detail {
constinit const KernelSet kAvx2Kernels = make_kernel_set<Entries>();
}  // namespace spillway::cpu_adam::detail
