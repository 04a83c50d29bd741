// Sixteen fp32 lanes without vector instructions: the twin of simd_avx2.hpp and simd_avx512.hpp.
// All three give the same bits: explicit fma, the same 16 lanes, the same reduction tree.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.hpp"
#include "runtime/model/host/element.hpp"

namespace spillway::model::host::SPILLWAY_SIMD {

inline constexpr std::size_t kLanes = 16;
inline constexpr std::size_t kTileVectors = 1;  ///< columns of the gemm kernel's register tile

struct F {
  float lane[kLanes];
};

inline float widen(float x) { return x; }
inline float widen(Bf16 x) { return from_bf16(x.bits); }
inline float widen(Fp16 x) { return from_fp16(x.bits); }
inline void narrow(float* p, float x) { *p = x; }
inline void narrow(Bf16* p, float x) { p->bits = to_bf16(x); }
inline void narrow(Fp16* p, float x) { p->bits = to_fp16(x); }

template <class Operation>
inline F map(Operation operation) {
  F r;
  for (std::size_t i = 0; i < kLanes; ++i) r.lane[i] = operation(i);
  return r;
}

inline F set(float x) {
  return map([&](std::size_t) { return x; });
}
template <class T>
inline F load(const T* p) {
  return map([&](std::size_t i) { return widen(p[i]); });
}
/// The first `count` (< 16) lanes, the others `fill`.
template <class T>
inline F load_part(const T* p, std::size_t count, float fill = 0) {
  return map([&](std::size_t i) { return i < count ? widen(p[i]) : fill; });
}
template <class T>
inline void store(T* p, F a) {
  for (std::size_t i = 0; i < kLanes; ++i) narrow(p + i, a.lane[i]);
}
template <class T>
inline void store_part(T* p, F a, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) narrow(p + i, a.lane[i]);
}
inline F operator+(F a, F b) {
  return map([&](std::size_t i) { return a.lane[i] + b.lane[i]; });
}
inline F operator-(F a, F b) {
  return map([&](std::size_t i) { return a.lane[i] - b.lane[i]; });
}
inline F operator*(F a, F b) {
  return map([&](std::size_t i) { return a.lane[i] * b.lane[i]; });
}
inline F operator/(F a, F b) {
  return map([&](std::size_t i) { return a.lane[i] / b.lane[i]; });
}
/// a * b + c, rounded once.
inline F fma(F a, F b, F c) {
  return map([&](std::size_t i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
/// Gives the second operand where either is NaN, as the x86 instructions do.
inline F max(F a, F b) {
  return map([&](std::size_t i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline F min(F a, F b) {
  return map([&](std::size_t i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline F abs(F a) {
  return map([&](std::size_t i) { return std::fabs(a.lane[i]); });
}
inline F round(F a) {
  return map([&](std::size_t i) { return std::nearbyintf(a.lane[i]); });
}
/// 2^n for integral n in [-126, 127]; anything for a NaN.
inline F power_of_two(F n) {
  return map([&](std::size_t i) {
    const float clean = n.lane[i] == n.lane[i] ? n.lane[i] : 0.0F;
    return std::bit_cast<float>((static_cast<std::uint32_t>(static_cast<int>(clean)) + 127U) << 23);
  });
}
/// a where x < 0, else b.
inline F select_negative(F x, F a, F b) {
  return map([&](std::size_t i) { return x.lane[i] < 0 ? a.lane[i] : b.lane[i]; });
}
inline float sum(F a) {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) a.lane[i] = a.lane[i] + a.lane[i + half];
  }
  return a.lane[0];
}
inline float largest(F a) {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      a.lane[i] = a.lane[i] > a.lane[i + half] ? a.lane[i] : a.lane[i + half];
    }
  }
  return a.lane[0];
}

}  // namespace spillway::model::host::SPILLWAY_SIMD
