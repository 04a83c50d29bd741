// The plain kernels: one element at a time. Oracle of the vector kernels, and the way to run on a
// CPU without AVX2.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu_adam/codec.hpp"
#include "cpu_adam/detail/kernel_set.hpp"
#include "cpu_adam/element.hpp"
#include "runtime/base/simd/flush_denormals.hpp"

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

// The state of up to kQuantizationBlock parameters in fp32.
struct Wide {
  float master[kQuantizationBlock];
  float m[kQuantizationBlock];
  float v[kQuantizationBlock];
};

template <StateFormat Format>
void read_masters(const UpdateRange& range, std::size_t first, std::size_t count, float* master) {
  for (std::size_t j = 0; j < count; ++j) {
    if constexpr (Format == StateFormat::fp32) {
      master[j] = load<float>(range.master_in, first + j);
    } else {
      master[j] = join_master(load<std::uint16_t>(range.parameters_in, first + j),
                              load<std::int16_t>(range.master_in, first + j));
    }
  }
}

template <StateFormat Format, DType Parameter>
void write_masters(const UpdateRange& range, std::size_t first, std::size_t count,
                   const float* master) {
  for (std::size_t j = 0; j < count; ++j) {
    if constexpr (Format == StateFormat::fp32) {
      store(range.master_out, first + j, master[j]);
    } else {
      store(range.master_out, first + j, remainder_of(master[j]));
    }
    if (range.parameters_out != nullptr) {
      store_parameter<Parameter>(range.parameters_out, first + j, master[j]);
    }
  }
}

enum class Moment : std::uint8_t { m, v };

template <StateFormat Format, Moment Which>
void read_moment(const void* in, const float* scales, std::size_t first, std::size_t count,
                 float* moment) {
  float scale = 0;
  if constexpr (Format == StateFormat::int8) {
    scale = load<float>(scales, first / kQuantizationBlock * 2 + static_cast<std::size_t>(Which));
  }
  for (std::size_t j = 0; j < count; ++j) {
    if constexpr (Format == StateFormat::bf16) {
      moment[j] = from_bf16(load<std::uint16_t>(in, first + j));
    } else if constexpr (Format == StateFormat::int8) {
      if constexpr (Which == Moment::m) {
        moment[j] = decode_signed(load<std::int8_t>(in, first + j), scale);
      } else {
        moment[j] = decode_unsigned(load<std::uint8_t>(in, first + j), scale);
      }
    } else {
      moment[j] = load<float>(in, first + j);
    }
  }
}

/// `random`: [count] random bits, read in format bf16.
template <StateFormat Format, Moment Which>
void write_moment(void* out, float* scales, std::size_t first, std::size_t count,
                  const float* moment, const std::uint32_t* random) {
  float inverse = 0;
  if constexpr (Format == StateFormat::int8) {
    std::uint32_t largest = 0;
    for (std::size_t j = 0; j < count; ++j) largest = std::max(largest, magnitude_bits(moment[j]));
    const auto scale = std::bit_cast<float>(largest);
    store(scales, first / kQuantizationBlock * 2 + static_cast<std::size_t>(Which), scale);
    inverse = inverse_scale(scale);
  }
  for (std::size_t j = 0; j < count; ++j) {
    if constexpr (Format == StateFormat::bf16) {
      const std::uint32_t bits = Which == Moment::m ? random[j] & 0xffffU : random[j] >> 16;
      store(out, first + j, stochastic_bf16(moment[j], bits));
    } else if constexpr (Format == StateFormat::int8) {
      if constexpr (Which == Moment::m) {
        store(out, first + j, encode_signed(moment[j], inverse));
      } else {
        store(out, first + j, encode_unsigned(moment[j], inverse));
      }
    } else {
      store(out, first + j, moment[j]);
    }
  }
}

template <StateFormat Format, DType Gradient, DType Parameter>
void update_block(const UpdateScalars& scalars, RoundingKey key, const UpdateRange& range,
                  std::size_t first, std::size_t count) {
  Wide wide{};
  read_masters<Format>(range, first, count, wide.master);
  const bool has_m = uses_m(scalars.optimizer);
  const bool has_v = uses_v(scalars.optimizer);
  if (has_m) read_moment<Format, Moment::m>(range.m_in, range.scales_in, first, count, wide.m);
  if (has_v) read_moment<Format, Moment::v>(range.v_in, range.scales_in, first, count, wide.v);
  std::uint32_t random[kQuantizationBlock];
  for (std::size_t j = 0; j < count; ++j) {
    const ElementState old{.master = wide.master[j], .m = wide.m[j], .v = wide.v[j]};
    const ElementState next =
        update_element(scalars, old, widen<Gradient>(range.gradient, first + j));
    wide.master[j] = next.master;
    wide.m[j] = next.m;
    wide.v[j] = next.v;
    random[j] = rounding_bits(key, static_cast<std::uint32_t>(range.index + first + j));
  }
  write_masters<Format, Parameter>(range, first, count, wide.master);
  if (has_m) {
    write_moment<Format, Moment::m>(range.m_out, range.scales_out, first, count, wide.m, random);
  }
  if (has_v) {
    write_moment<Format, Moment::v>(range.v_out, range.scales_out, first, count, wide.v, random);
  }
}

template <StateFormat Format, DType Gradient, DType Parameter>
[[gnu::noinline]] void update_range(const UpdateScalars& scalars, RoundingKey key,
                                    const UpdateRange& range) {
  for (std::size_t first = 0; first < range.count; first += kQuantizationBlock) {
    update_block<Format, Gradient, Parameter>(scalars, key, range, first,
                                              std::min(kQuantizationBlock, range.count - first));
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
  template <StateFormat Format, DType Gradient, DType Parameter>
  static void update(const UpdateScalars& scalars, RoundingKey key, const UpdateRange& range) {
    const simd::FlushDenormals guard;
    update_range<Format, Gradient, Parameter>(scalars, key, range);
  }

  template <DType Type>
  static void sum_squares(const void* gradient, std::size_t count, double* leaves) {
    const simd::FlushDenormals guard;
    for (std::size_t first = 0; first < count; first += kLeafParameters) {
      *leaves++ = leaf_sum<Type>(gradient, first, std::min(kLeafParameters, count - first));
    }
  }

  template <DType Type>
  static void accumulate(const void* source, float* target, std::size_t count, bool first) {
    const simd::FlushDenormals guard;
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
