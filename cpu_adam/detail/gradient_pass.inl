// Widening, casts, accumulation and the sum of squares over vectors. Part of
// vector_entries.inl.
#pragma once

#include <algorithm>
#include <cstring>

namespace spillway::cpu_adam::detail {
namespace {

/// Local buffers are aligned to it by name: where GCC 12 raises their alignment by itself,
/// AddressSanitizer's heap frames (detect_stack_use_after_return) do not follow.
inline constexpr std::size_t kCacheLine = 64;

/// Element `i` of an array of `Type` that need not be aligned.
template <DType Type>
inline const std::byte* element_at(const void* base, std::size_t i) {
  return static_cast<const std::byte*>(base) + i * size_of(Type);
}

template <DType Type>
inline void copy_elements(void* target, std::size_t target_first, const void* source,
                          std::size_t source_first, std::size_t count) {
  std::memcpy(static_cast<std::byte*>(target) + target_first * size_of(Type),
              element_at<Type>(source, source_first), count * size_of(Type));
}

/// kWidth gradients from element `i` on, as fp32.
template <DType Type>
SPILLWAY_TARGET inline Lanes::Float widen(const void* base, std::size_t i) {
  const std::byte* const source = element_at<Type>(base, i);
  if constexpr (Type == DType::fp32) return Lanes::load(reinterpret_cast<const float*>(source));
  if constexpr (Type == DType::bf16) return Lanes::from_bf16(Lanes::load_half(source));
  if constexpr (Type == DType::fp16) return Lanes::from_fp16(Lanes::load_half(source));
}

SPILLWAY_TARGET inline void add_squares(Lanes::Double* sums, Lanes::Float x) {
  sums[0] = Lanes::add_square(Lanes::low(x), sums[0]);
  sums[1] = Lanes::add_square(Lanes::high(x), sums[1]);
}

template <DType Type>
[[gnu::noinline]] SPILLWAY_TARGET double leaf_sum(const void* gradient, std::size_t first,
                                                  std::size_t count) {
  constexpr std::size_t kVectors = kPartialSums / Lanes::kWidth;
  Lanes::Double sums[2 * kVectors];
  SPILLWAY_UNROLL
  for (std::size_t k = 0; k < 2 * kVectors; ++k) sums[k] = Lanes::zero_double();
  const std::size_t whole = count / kPartialSums * kPartialSums;
  for (std::size_t i = 0; i < whole; i += kPartialSums) {
    SPILLWAY_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      add_squares(sums + 2 * k, widen<Type>(gradient, first + i + k * Lanes::kWidth));
    }
  }
  if (whole < count) {
    alignas(kCacheLine) std::byte padded[kPartialSums * sizeof(float)] = {};
    copy_elements<Type>(padded, 0, gradient, first + whole, count - whole);
    SPILLWAY_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      add_squares(sums + 2 * k, widen<Type>(padded, k * Lanes::kWidth));
    }
  }
  alignas(kCacheLine) double stored[kPartialSums];
  SPILLWAY_UNROLL
  for (std::size_t k = 0; k < 2 * kVectors; ++k) {
    Lanes::store_double(stored + k * (Lanes::kWidth / 2), sums[k]);
  }
  return combine_partial_sums(stored);
}

template <DType Type>
SPILLWAY_TARGET inline void accumulate_vector(const void* source, float* target, std::size_t i,
                                              bool first) {
  const Lanes::Float before = first ? Lanes::set(0.0F) : Lanes::load(target + i);
  Lanes::store(target + i, Lanes::add(before, widen<Type>(source, i)));
}

template <DType Type>
[[gnu::noinline]] SPILLWAY_TARGET void accumulate_range(const void* source, float* target,
                                                        std::size_t count, bool first) {
  const std::size_t whole = count / Lanes::kWidth * Lanes::kWidth;
  for (std::size_t i = 0; i < whole; i += Lanes::kWidth) {
    accumulate_vector<Type>(source, target, i, first);
  }
  if (whole == count) return;
  alignas(kCacheLine) std::byte padded_source[Lanes::kWidth * sizeof(float)] = {};
  alignas(kCacheLine) float padded_target[Lanes::kWidth] = {};
  copy_elements<Type>(padded_source, 0, source, whole, count - whole);
  if (!first) copy_elements<DType::fp32>(padded_target, 0, target, whole, count - whole);
  accumulate_vector<Type>(padded_source, padded_target, 0, first);
  copy_elements<DType::fp32>(target, whole, padded_target, 0, count - whole);
}

/// Which rule turns fp32 into bf16.
enum class Rounding { parameter, gradient };

template <DType Type, Rounding Rule>
SPILLWAY_TARGET inline void narrow_vector(const float* source, void* target, std::size_t i) {
  const Lanes::Float value = Lanes::load(source + i);
  std::byte* const out = static_cast<std::byte*>(target) + i * size_of(Type);
  if constexpr (Type == DType::fp16) {
    Lanes::store_half(out, Lanes::to_fp16(value));
  } else {
    Lanes::store_half(out, Rule == Rounding::parameter ? Lanes::parameter_to_bf16(value)
                                                       : Lanes::gradient_to_bf16(value));
  }
}

template <DType Type, Rounding Rule>
[[gnu::noinline]] SPILLWAY_TARGET void narrow_range(const float* source, void* target,
                                                    std::size_t count) {
  if constexpr (Type == DType::fp32) {
    if (count > 0) copy_elements<DType::fp32>(target, 0, source, 0, count);
  } else {
    const std::size_t whole = count / Lanes::kWidth * Lanes::kWidth;
    for (std::size_t i = 0; i < whole; i += Lanes::kWidth) {
      narrow_vector<Type, Rule>(source, target, i);
    }
    if (whole == count) return;
    alignas(kCacheLine) float padded[Lanes::kWidth] = {};
    alignas(kCacheLine) std::byte narrowed[Lanes::kWidth * sizeof(float)];
    copy_elements<DType::fp32>(padded, 0, source, whole, count - whole);
    narrow_vector<Type, Rule>(padded, narrowed, 0);
    copy_elements<Type>(target, whole, narrowed, 0, count - whole);
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::detail
