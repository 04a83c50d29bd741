// The plain kernels: one element at a time. Oracle of the vector kernels, and the way to run on a
// CPU without AVX2.
#include <algorithm>
#include <cstring>

#include "cpu_adam/detail/flush_denormals.hpp"
#include "cpu_adam/detail/kernel_set.hpp"
#include "cpu_adam/element.hpp"

namespace spillway::cpu_adam::detail {
namespace {

// Pointers need not be aligned, so elements move by memcpy.
template <class T>
T load(const void* base, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(base) + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(void* base, std::size_t index, T value) {
  std::memcpy(static_cast<std::byte*>(base) + index * sizeof(T), &value, sizeof(T));
}

template <DType Type>
float widen(const void* base, std::size_t index) {
  if constexpr (Type == DType::fp32) return load<float>(base, index);
  if constexpr (Type == DType::bf16) return from_bf16(load<std::uint16_t>(base, index));
  if constexpr (Type == DType::fp16) return from_fp16(load<std::uint16_t>(base, index));
}

template <DType Type>
void store_parameter(void* base, std::size_t index, float value) {
  if constexpr (Type == DType::fp32) store(base, index, value);
  if constexpr (Type == DType::bf16) store(base, index, parameter_to_bf16(value));
  if constexpr (Type == DType::fp16) store(base, index, to_fp16(value));
}

template <DType Type>
void store_gradient(void* base, std::size_t index, float value) {
  if constexpr (Type == DType::fp32) store(base, index, value);
  if constexpr (Type == DType::bf16) store(base, index, to_bf16(value));
  if constexpr (Type == DType::fp16) store(base, index, to_fp16(value));
}

template <DType Gradient, DType Parameter, DecayMode Mode>
[[gnu::noinline]] void update_range(const UpdateScalars& scalars, const UpdateRange& range) {
  for (std::size_t i = 0; i < range.count; ++i) {
    const ElementState old{.master = load<float>(range.master_in, i),
                           .m = load<float>(range.m_in, i),
                           .v = load<float>(range.v_in, i)};
    const ElementState next =
        update_element<Mode>(scalars, old, widen<Gradient>(range.gradient, i));
    store(range.master_out, i, next.master);
    store(range.m_out, i, next.m);
    store(range.v_out, i, next.v);
    if (range.parameters_out != nullptr) {
      store_parameter<Parameter>(range.parameters_out, i, next.master);
    }
  }
}

template <DType Type>
[[gnu::noinline]] double leaf_sum(const void* gradient, std::size_t first, std::size_t count) {
  double sums[kPartialSums] = {};
  for (std::size_t i = 0; i < count; ++i) {
    const double x = widen<Type>(gradient, first + i);
    sums[i % kPartialSums] += x * x;
  }
  return combine_partial_sums(sums);
}

template <DType Type>
[[gnu::noinline]] void accumulate_range(const void* source, float* target, std::size_t count,
                                        bool first) {
  for (std::size_t i = 0; i < count; ++i) {
    const float before = first ? 0.0F : load<float>(target, i);
    store(target, i, before + widen<Type>(source, i));
  }
}

struct Entries {
  template <DType Gradient, DType Parameter>
  static void update(const UpdateScalars& scalars, const UpdateRange& range) {
    const FlushDenormals guard;
    if (scalars.mode == DecayMode::decoupled) {
      update_range<Gradient, Parameter, DecayMode::decoupled>(scalars, range);
    } else {
      update_range<Gradient, Parameter, DecayMode::l2>(scalars, range);
    }
  }

  template <DType Type>
  static void sum_squares(const void* gradient, std::size_t count, double* leaves) {
    const FlushDenormals guard;
    for (std::size_t first = 0; first < count; first += kLeafParameters) {
      *leaves++ = leaf_sum<Type>(gradient, first, std::min(kLeafParameters, count - first));
    }
  }

  template <DType Type>
  static void accumulate(const void* source, float* target, std::size_t count, bool first) {
    const FlushDenormals guard;
    accumulate_range<Type>(source, target, count, first);
  }

  // The casts are integer arithmetic, so they need no guard.
  template <DType Type>
  static void cast_parameters(const float* master, void* target, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      store_parameter<Type>(target, i, load<float>(master, i));
    }
  }

  template <DType Type>
  static void round_gradient(const float* source, void* target, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      store_gradient<Type>(target, i, load<float>(source, i));
    }
  }
};

}  // namespace

constinit const KernelSet kScalarKernels = make_kernel_set<Entries>();

}  // namespace spillway::cpu_adam::detail
