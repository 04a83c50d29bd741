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

template <DType dtype>
float widen(const void* base, std::size_t index) {
  if constexpr (dtype == DType::fp32) return load<float>(base, index);
  if constexpr (dtype == DType::bf16) return from_bf16(load<std::uint16_t>(base, index));
  if constexpr (dtype == DType::fp16) return from_fp16(load<std::uint16_t>(base, index));
}

template <DType dtype>
void store_parameter(void* base, std::size_t index, float value) {
  if constexpr (dtype == DType::fp32) store(base, index, value);
  if constexpr (dtype == DType::bf16) store(base, index, parameter_to_bf16(value));
  if constexpr (dtype == DType::fp16) store(base, index, to_fp16(value));
}

template <DType dtype>
void store_gradient(void* base, std::size_t index, float value) {
  if constexpr (dtype == DType::fp32) store(base, index, value);
  if constexpr (dtype == DType::bf16) store(base, index, to_bf16(value));
  if constexpr (dtype == DType::fp16) store(base, index, to_fp16(value));
}

template <DType gradient, DType parameter, DecayMode mode>
[[gnu::noinline]] void update_range(const UpdateScalars& scalars, const UpdateRange& range) {
  for (std::size_t i = 0; i < range.count; ++i) {
    const ElementState old{.master = load<float>(range.master_in, i),
                           .m = load<float>(range.m_in, i),
                           .v = load<float>(range.v_in, i)};
    const ElementState next =
        update_element<mode>(scalars, old, widen<gradient>(range.gradient, i));
    store(range.master_out, i, next.master);
    store(range.m_out, i, next.m);
    store(range.v_out, i, next.v);
    if (range.parameters_out != nullptr) {
      store_parameter<parameter>(range.parameters_out, i, next.master);
    }
  }
}

template <DType dtype>
[[gnu::noinline]] double leaf_sum(const void* gradient, std::size_t first, std::size_t count) {
  double sums[kPartialSums] = {};
  for (std::size_t i = 0; i < count; ++i) {
    const double x = widen<dtype>(gradient, first + i);
    sums[i % kPartialSums] += x * x;
  }
  return combine_partial_sums(sums);
}

template <DType dtype>
[[gnu::noinline]] void accumulate_range(const void* source, float* target, std::size_t count,
                                        bool first) {
  for (std::size_t i = 0; i < count; ++i) {
    const float before = first ? 0.0F : load<float>(target, i);
    store(target, i, before + widen<dtype>(source, i));
  }
}

struct Entries {
  template <DType gradient, DType parameter>
  static void update(const UpdateScalars& scalars, const UpdateRange& range) {
    const FlushDenormals guard;
    if (scalars.mode == DecayMode::decoupled) {
      update_range<gradient, parameter, DecayMode::decoupled>(scalars, range);
    } else {
      update_range<gradient, parameter, DecayMode::l2>(scalars, range);
    }
  }

  template <DType dtype>
  static void sum_squares(const void* gradient, std::size_t count, double* leaves) {
    const FlushDenormals guard;
    for (std::size_t first = 0; first < count; first += kLeafParameters) {
      *leaves++ = leaf_sum<dtype>(gradient, first, std::min(kLeafParameters, count - first));
    }
  }

  template <DType dtype>
  static void accumulate(const void* source, float* target, std::size_t count, bool first) {
    const FlushDenormals guard;
    accumulate_range<dtype>(source, target, count, first);
  }

  // The casts are integer arithmetic, so they need no guard.
  template <DType dtype>
  static void cast_parameters(const float* master, void* target, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      store_parameter<dtype>(target, i, load<float>(master, i));
    }
  }

  template <DType dtype>
  static void round_gradient(const float* source, void* target, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      store_gradient<dtype>(target, i, load<float>(source, i));
    }
  }
};

}  // namespace

constinit const KernelSet kScalarKernels = make_kernel_set<Entries>();

}  // namespace spillway::cpu_adam::detail
