// The kernels for AVX-512 (F, BW, VL): 16 elements a vector. Its bf16 instructions flush and round
// by other rules than ours, so bf16 is integer arithmetic here too.

// GCC 12 reports its own headers' deliberately undefined pass-through operands (its PR 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "cpu_adam/detail/flush_denormals.hpp"
#include "cpu_adam/detail/kernel_set.hpp"

#define SPILLWAY_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")))

namespace spillway::cpu_adam::detail {
namespace {

/// What the passes need from an instruction set. 16-bit elements are [kWidth] in a `Half`.
struct Lanes {
  using Float = __m512;
  using Double = __m512d;
  using Half = __m256i;
  static constexpr std::size_t kWidth = 16;

  SPILLWAY_TARGET static Float set(float x) { return _mm512_set1_ps(x); }
  SPILLWAY_TARGET static Float load(const float* p) { return _mm512_loadu_ps(p); }
  SPILLWAY_TARGET static void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
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
  /// bits + increment, upper half; NaN is made quiet instead, as an addition could end it.
  SPILLWAY_TARGET static Half round_bf16(Float x, __m512i increment) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, increment), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail

#include "cpu_adam/detail/gradient_pass.inl"
#include "cpu_adam/detail/update_pass.inl"
#include "cpu_adam/detail/vector_entries.inl"

namespace spillway::cpu_adam::detail {
constinit const KernelSet kAvx512Kernels = make_kernel_set<Entries>();
}  // namespace spillway::cpu_adam::detail
