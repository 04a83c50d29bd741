// Sixteen fp32 lanes in as many of the instruction set's vectors as that takes. All instruction
// sets give the same bits: explicit fma, the same 16 lanes, the same reduction tree. The functions
// of the same names in runtime/base/simd/portable.hpp say what each means. See kernel_math.hpp for
// how this file is compiled.
#pragma once

#include <cstddef>
#include <type_traits>

#include "runtime/model/host/element.hpp"

namespace spillway::model::host::SPILLWAY_SIMD {

namespace native = simd::SPILLWAY_SIMD;

inline constexpr std::size_t kLanes = 16;
inline constexpr std::size_t kWidth = native::kWidth;
inline constexpr std::size_t kParts = kLanes / kWidth;
inline constexpr std::size_t kTileVectors = kParts == 1 ? 4 : 1;  ///< columns of the gemm's tile

struct F {
  native::Float part[kParts];
};

/// Fills each part by its number.
template <class Operation>
inline F each(Operation operation) {
  F r;
#pragma GCC unroll 4
  for (std::size_t k = 0; k < kParts; ++k) r.part[k] = operation(k);
  return r;
}
/// Number of lanes of part k below `count`.
inline std::size_t count_in(std::size_t k, std::size_t count) {
  const std::size_t before = k * kWidth;
  return count <= before ? 0 : count - before < kWidth ? count - before : kWidth;
}

template <class T>
inline native::Float widen_half(native::Half x) {
  if constexpr (std::is_same_v<T, Bf16>) return native::from_bf16(x);
  if constexpr (std::is_same_v<T, Fp16>) return native::from_fp16(x);
}
template <class T>
inline native::Half narrow_half(native::Float x) {
  if constexpr (std::is_same_v<T, Bf16>) return native::to_bf16(x);
  if constexpr (std::is_same_v<T, Fp16>) return native::to_fp16(x);
}

inline F set(float x) {
  return each([&](std::size_t) { return native::set(x); });
}
template <class T>
inline F load(const T* p) {
  return each([&](std::size_t k) {
    if constexpr (std::is_same_v<T, float>) return native::load(p + k * kWidth);
    if constexpr (sizeof(T) == 2) return widen_half<T>(native::load_half(p + k * kWidth));
  });
}
template <class T>
inline void store(T* p, F a) {
#pragma GCC unroll 4
  for (std::size_t k = 0; k < kParts; ++k) {
    if constexpr (std::is_same_v<T, float>) native::store(p + k * kWidth, a.part[k]);
    if constexpr (sizeof(T) == 2) native::store_half(p + k * kWidth, narrow_half<T>(a.part[k]));
  }
}
/// Loads `count` (< 16) lanes; the others are `fill`.
template <class T>
inline F load_part(const T* p, std::size_t count, float fill = 0) {
  return each([&](std::size_t k) {
    const std::size_t here = count_in(k, count);
    const native::Float rest = native::set(fill);
    if constexpr (std::is_same_v<T, float>) return native::load_first(here, p + k * kWidth, rest);
    if constexpr (sizeof(T) == 2) {
      const native::Half halves = native::load_half_first(here, p + k * kWidth);
      return native::first(here, widen_half<T>(halves), rest);
    }
  });
}
template <class T>
inline void store_part(T* p, F a, std::size_t count) {
#pragma GCC unroll 4
  for (std::size_t k = 0; k < kParts; ++k) {
    const std::size_t here = count_in(k, count);
    if constexpr (std::is_same_v<T, float>) native::store_first(here, p + k * kWidth, a.part[k]);
    if constexpr (sizeof(T) == 2) {
      native::store_half_first(here, p + k * kWidth, narrow_half<T>(a.part[k]));
    }
  }
}

inline F operator+(F a, F b) {
  return each([&](std::size_t k) { return a.part[k] + b.part[k]; });
}
inline F operator-(F a, F b) {
  return each([&](std::size_t k) { return a.part[k] - b.part[k]; });
}
inline F operator*(F a, F b) {
  return each([&](std::size_t k) { return a.part[k] * b.part[k]; });
}
inline F operator/(F a, F b) {
  return each([&](std::size_t k) { return a.part[k] / b.part[k]; });
}
inline F fma(F a, F b, F c) {
  return each([&](std::size_t k) { return native::fma(a.part[k], b.part[k], c.part[k]); });
}
inline F max(F a, F b) {
  return each([&](std::size_t k) { return native::max(a.part[k], b.part[k]); });
}
inline F min(F a, F b) {
  return each([&](std::size_t k) { return native::min(a.part[k], b.part[k]); });
}
inline F abs(F a) {
  return each([&](std::size_t k) { return native::abs(a.part[k]); });
}
inline F round(F a) {
  return each([&](std::size_t k) { return native::round(a.part[k]); });
}
inline F power_of_two(F n) {
  return each([&](std::size_t k) { return native::power_of_two(n.part[k]); });
}
inline F select_negative(F x, F a, F b) {
  return each(
      [&](std::size_t k) { return native::select_negative(x.part[k], a.part[k], b.part[k]); });
}
inline float sum(F a) {
  for (std::size_t half = kParts / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) a.part[k] = a.part[k] + a.part[k + half];
  }
  return native::sum(a.part[0]);
}
inline float largest(F a) {
  for (std::size_t half = kParts / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) {
      a.part[k] = native::max(a.part[k], a.part[k + half]);
    }
  }
  return native::largest(a.part[0]);
}

}  // namespace spillway::model::host::SPILLWAY_SIMD
