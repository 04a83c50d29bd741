// KernelSet: all functions of one instruction set, indexed by element type. One instance per
// instruction set, each in its own source file; the public functions dispatch through it.
#pragma once

#include <cstddef>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/gradient_norm.hpp"

namespace spillway::cpu_adam::detail {

inline constexpr std::size_t kDTypes = 3;
constexpr std::size_t index_of(DType dtype) { return static_cast<std::size_t>(dtype); }

/// Every entry sets and restores the floating-point environment itself.
struct KernelSet {
  UpdateFunction update[kDTypes][kDTypes];  ///< [gradient][parameter]
  void (*sum_squares[kDTypes])(const void* gradient, std::size_t count, double* leaves);
  void (*accumulate[kDTypes])(const void* source, float* target, std::size_t count, bool first);
  void (*cast_parameters[kDTypes])(const float* master, void* target, std::size_t count);
  void (*round_gradient[kDTypes])(const float* source, void* target, std::size_t count);
};

extern const KernelSet kScalarKernels;
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;

/// Throws `Error{not_supported}` if this CPU lacks `isa`.
const KernelSet& kernel_set(Isa isa);

/// Fills a KernelSet from a struct of static function templates.
template <class Entries>
constexpr KernelSet make_kernel_set() {
  using enum DType;
  return KernelSet{
      .update = {{Entries::template update<fp32, fp32>, Entries::template update<fp32, bf16>,
                  Entries::template update<fp32, fp16>},
                 {Entries::template update<bf16, fp32>, Entries::template update<bf16, bf16>,
                  Entries::template update<bf16, fp16>},
                 {Entries::template update<fp16, fp32>, Entries::template update<fp16, bf16>,
                  Entries::template update<fp16, fp16>}},
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
}
static_assert(index_of(DType::fp32) == 0 && index_of(DType::bf16) == 1 &&
              index_of(DType::fp16) == 2);

// The partial sums of one leaf; see gradient_norm.hpp for the tree.
inline constexpr std::size_t kPartialSums = 32;

/// sums: [kPartialSums], overwritten.
inline double combine_partial_sums(double* sums) {
  for (std::size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

}  // namespace spillway::cpu_adam::detail
