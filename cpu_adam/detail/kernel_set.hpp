// KernelSet: all functions of one instruction set, indexed by element type. One instance per
// instruction set, each in its own source file; the public functions dispatch through it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/codec.hpp"
#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"

namespace spillway::cpu_adam::detail {

inline constexpr std::size_t kDTypes = 3;
constexpr std::size_t index_of(DType dtype) { return static_cast<std::size_t>(dtype); }

/// Lists the pairs of state format and parameter type that go together, in the order of the table.
struct FormatRow {
  StateFormat format;
  DType parameter;
};
inline constexpr FormatRow kFormatRows[] = {
    {StateFormat::fp32, DType::fp32}, {StateFormat::fp32, DType::bf16},
    {StateFormat::fp32, DType::fp16}, {StateFormat::split, DType::bf16},
    {StateFormat::bf16, DType::bf16}, {StateFormat::int8, DType::bf16},
};
inline constexpr std::size_t kFormatRowCount = std::size(kFormatRows);

/// Returns the address of element `i`; null stays null (state that is not there).
inline const void* advance(const void* base, std::size_t size, std::size_t i) {
  return base == nullptr ? nullptr : static_cast<const std::byte*>(base) + size * i;
}
inline void* advance(void* base, std::size_t size, std::size_t i) {
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + size * i;
}

/// Implements cpu_adam::slice.
inline UpdateRange slice(const FormatRow& row, DType gradient, const UpdateRange& whole,
                         std::size_t first, std::size_t count) {
  const std::size_t master = master_size(row.format);
  const std::size_t moment = moment_size(row.format);
  const std::size_t parameter = size_of(row.parameter);
  const std::size_t scale = first / kQuantizationBlock * 2;
  UpdateRange part = whole;
  part.gradient = advance(whole.gradient, size_of(gradient), first);
  part.master_in = advance(whole.master_in, master, first);
  part.m_in = advance(whole.m_in, moment, first);
  part.v_in = advance(whole.v_in, moment, first);
  part.parameters_in = advance(whole.parameters_in, parameter, first);
  part.master_out = advance(whole.master_out, master, first);
  part.m_out = advance(whole.m_out, moment, first);
  part.v_out = advance(whole.v_out, moment, first);
  part.parameters_out = advance(whole.parameters_out, parameter, first);
  if (whole.scales_in != nullptr) part.scales_in += scale;
  if (whole.scales_out != nullptr) part.scales_out += scale;
  part.count = count;
  part.index = whole.index + first;
  return part;
}

/// `key` rounds format bf16; the whole range has the same upper half of the index.
using KeyedUpdate = void (*)(const UpdateScalars&, RoundingKey key, const UpdateRange&);

/// Calls `Update` once per key.
template <FormatRow Row, DType Gradient, KeyedUpdate Update>
void update_by_key(const UpdateScalars& scalars, const UpdateRange& range) {
  if constexpr (Row.format == StateFormat::int8) {
    SPILLWAY_ASSERT(range.count == 0 || range.index % kQuantizationBlock == 0);
  }
  if constexpr (Row.format != StateFormat::bf16) {
    Update(scalars, RoundingKey{}, range);
  } else {
    constexpr std::uint64_t kKeyed = std::uint64_t{1} << 32;
    for (std::size_t first = 0; first < range.count;) {
      const std::uint64_t index = range.index + first;
      const std::size_t count =
          std::min<std::uint64_t>(range.count - first, kKeyed - index % kKeyed);
      const RoundingKey key = rounding_key(scalars.rounding_seed, scalars.t, range.block,
                                           static_cast<std::uint32_t>(index / kKeyed));
      Update(scalars, key, slice(Row, Gradient, range, first, count));
      first += count;
    }
  }
}

/// Every entry sets and restores the floating-point environment itself.
struct KernelSet {
  UpdateFunction update[kFormatRowCount][kDTypes];  ///< [row][gradient]
  void (*sum_squares[kDTypes])(const void* gradient, std::size_t count, double* leaves);
  void (*accumulate[kDTypes])(const void* source, float* target, std::size_t count, bool first);
  void (*cast_parameters[kDTypes])(const float* master, void* target, std::size_t count);
  void (*round_gradient[kDTypes])(const float* source, void* target, std::size_t count);
};

extern const KernelSet kScalarKernels;
extern const KernelSet kPortableKernels;
#if defined(__x86_64__)
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;
#endif

/// Throws `Error{not_supported}` if this CPU lacks `isa`.
const KernelSet& kernel_set(Isa isa);

template <class Entries, FormatRow Row, DType Gradient>
inline constexpr UpdateFunction kUpdate =
    update_by_key<Row, Gradient, Entries::template update<Row.format, Gradient, Row.parameter>>;

/// Fills a KernelSet from a struct of static function templates.
template <class Entries>
constexpr KernelSet make_kernel_set() {
  using enum DType;
  KernelSet set{
      .update = {},
      .sum_squares = {Entries::template sum_squares<fp32>, Entries::template sum_squares<bf16>,
                      Entries::template sum_squares<fp16>},
      .accumulate = {Entries::template accumulate<fp32>, Entries::template accumulate<bf16>,
                     Entries::template accumulate<fp16>},
      .cast_parameters = {Entries::template cast_parameters<fp32>,
                          Entries::template cast_parameters<bf16>,
                          Entries::template cast_parameters<fp16>},
      .round_gradient = {Entries::template round_gradient<fp32>,
                         Entries::template round_gradient<bf16>,
                         Entries::template round_gradient<fp16>},
  };
  [&set]<std::size_t... row>(std::index_sequence<row...>) {
    ((set.update[row][index_of(fp32)] = kUpdate<Entries, kFormatRows[row], fp32>), ...);
    ((set.update[row][index_of(bf16)] = kUpdate<Entries, kFormatRows[row], bf16>), ...);
    ((set.update[row][index_of(fp16)] = kUpdate<Entries, kFormatRows[row], fp16>), ...);
  }(std::make_index_sequence<kFormatRowCount>{});
  return set;
}
static_assert(index_of(DType::fp32) == 0 && index_of(DType::bf16) == 1 &&
              index_of(DType::fp16) == 2);

// This counts the partial sums of one leaf; gradient_norm.hpp has the tree.
inline constexpr std::size_t kPartialSums = 32;

/// Combines sums: [kPartialSums], overwritten.
inline double combine_partial_sums(double* sums) {
  for (std::size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

}  // namespace spillway::cpu_adam::detail
