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
inline lanes::Float widen(const void* base, std::size_t i) {
  const std::byte* const source = element_at<Type>(base, i);
  if constexpr (Type == DType::fp32) return lanes::load(reinterpret_cast<const float*>(source));
  if constexpr (Type == DType::bf16) return lanes::from_bf16(lanes::load_half(source));
  if constexpr (Type == DType::fp16) return lanes::from_fp16(lanes::load_half(source));
}

inline void add_squares(lanes::Double* sums, lanes::Float x) {
  sums[0] = lanes::add_square(lanes::low(x), sums[0]);
  sums[1] = lanes::add_square(lanes::high(x), sums[1]);
}

template <DType Type>
[[gnu::noinline]] double leaf_sum(const void* gradient, std::size_t first, std::size_t count) {
  constexpr std::size_t kVectors = kPartialSums / lanes::kWidth;
  lanes::Double sums[2 * kVectors];
  SPILLWAY_UNROLL
  for (std::size_t k = 0; k < 2 * kVectors; ++k) sums[k] = lanes::zero_double();
  const std::size_t whole = count / kPartialSums * kPartialSums;
  for (std::size_t i = 0; i < whole; i += kPartialSums) {
    SPILLWAY_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      add_squares(sums + 2 * k, widen<Type>(gradient, first + i + k * lanes::kWidth));
    }
  }
  if (whole < count) {
    alignas(kCacheLine) std::byte padded[kPartialSums * sizeof(float)] = {};
    copy_elements<Type>(padded, 0, gradient, first + whole, count - whole);
    SPILLWAY_UNROLL
    for (std::size_t k = 0; k < kVectors; ++k) {
      add_squares(sums + 2 * k, widen<Type>(padded, k * lanes::kWidth));
    }
  }
  alignas(kCacheLine) double stored[kPartialSums];
  SPILLWAY_UNROLL
  for (std::size_t k = 0; k < 2 * kVectors; ++k) {
    lanes::store_double(stored + k * (lanes::kWidth / 2), sums[k]);
  }
  return combine_partial_sums(stored);
}

template <DType Type>
inline void accumulate_vector(const void* source, float* target, std::size_t i, bool first) {
  const lanes::Float before = first ? lanes::set(0.0F) : lanes::load(target + i);
  lanes::store(target + i, before + widen<Type>(source, i));
}

template <DType Type>
[[gnu::noinline]] void accumulate_range(const void* source, float* target, std::size_t count,
                                        bool first) {
  const std::size_t whole = count / lanes::kWidth * lanes::kWidth;
  for (std::size_t i = 0; i < whole; i += lanes::kWidth) {
    accumulate_vector<Type>(source, target, i, first);
  }
  if (whole == count) return;
  alignas(kCacheLine) std::byte padded_source[lanes::kWidth * sizeof(float)] = {};
  alignas(kCacheLine) float padded_target[lanes::kWidth] = {};
  copy_elements<Type>(padded_source, 0, source, whole, count - whole);
  if (!first) copy_elements<DType::fp32>(padded_target, 0, target, whole, count - whole);
  accumulate_vector<Type>(padded_source, padded_target, 0, first);
  copy_elements<DType::fp32>(target, whole, padded_target, 0, count - whole);
}

/// Which rule turns fp32 into bf16.
enum class Rounding { parameter, gradient };

template <DType Type, Rounding Rule>
inline void narrow_vector(const float* source, void* target, std::size_t i) {
  const lanes::Float value = lanes::load(source + i);
  std::byte* const out = static_cast<std::byte*>(target) + i * size_of(Type);
  if constexpr (Type == DType::fp16) {
    lanes::store_half(out, lanes::to_fp16(value));
  } else {
    lanes::store_half(
        out, Rule == Rounding::parameter ? lanes::parameter_to_bf16(value) : lanes::to_bf16(value));
  }
}

template <DType Type, Rounding Rule>
[[gnu::noinline]] void narrow_range(const float* source, void* target, std::size_t count) {
  if constexpr (Type == DType::fp32) {
    if (count > 0) copy_elements<DType::fp32>(target, 0, source, 0, count);
  } else {
    const std::size_t whole = count / lanes::kWidth * lanes::kWidth;
    for (std::size_t i = 0; i < whole; i += lanes::kWidth) {
      narrow_vector<Type, Rule>(source, target, i);
    }
    if (whole == count) return;
    alignas(kCacheLine) float padded[lanes::kWidth] = {};
    alignas(kCacheLine) std::byte narrowed[lanes::kWidth * sizeof(float)];
    copy_elements<DType::fp32>(padded, 0, source, whole, count - whole);
    narrow_vector<Type, Rule>(padded, narrowed, 0);
    copy_elements<Type>(target, whole, narrowed, 0, count - whole);
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::detail
