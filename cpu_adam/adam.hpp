// The Adam(W) update of a range of parameters, in one pass over memory, with the same bits from
// every kernel. Formulas: Kingma & Ba 2015, Loshchilov & Hutter 2019; see docs/architecture.md.
// Any thread may call anything here; a kernel touches only the ranges that it is given.
//
// Special values. Kernels compute to nearest even with FTZ and DAZ, whatever the caller's MXCSR,
// and put that back: an fp32 (or bf16) input below the normal range counts as zero and a result
// below it is zero. fp16 subnormals are ordinary numbers, in and out. A NaN gradient makes master,
// m and v NaN; an infinite one makes master NaN, m and v infinite; so whoever must not lose state
// looks at `sum_squares` first. A gradient whose square overflows makes v infinite and leaves the
// (decayed) master where it is. With eps = 0 a parameter whose v is zero becomes NaN (0 / 0).
// A NaN stays a NaN, but its payload and sign may differ between kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/dtype.hpp"

namespace spillway::cpu_adam {

enum class Isa : std::uint8_t { scalar, avx2, avx512 };
enum class DecayMode : std::uint8_t { decoupled /* AdamW */, l2 /* Adam */ };

/// Hyperparameters of one parameter group at one step. Finite; lr, eps, weight_decay >= 0 and
/// betas in [0, 1).
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  DecayMode decay_mode = DecayMode::decoupled;
  bool bias_correction = true;
};

/// The fp32 constants of one update, derived in fp64 once a step.
struct UpdateScalars {
  float gradient_scale;  ///< inverse loss scale times clip factor
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float sqrt_correction2;  ///< sqrt(1 - beta2^t)
  float step_size;         ///< lr / (1 - beta1^t)
  float decay_factor;      ///< 1 - lr * weight_decay (decoupled)
  float l2;                ///< weight_decay (l2 mode), else 0
  float eps;
  DecayMode mode;
};

/// `t` counts applied updates from 1. `gradient_scale`: inverse loss scale times clip factor.
/// Throws `Error{invalid_argument}` naming the first value outside its range.
[[nodiscard]] UpdateScalars make_scalars(const AdamOptions& options, std::uint64_t t,
                                         double gradient_scale);

/// One contiguous range. Inputs and outputs are the same pointers (in place) or do not overlap.
/// No alignment is required, not even that of float.
struct UpdateRange {
  const void* gradient = nullptr;    ///< [count] of gradient_dtype
  const float* master_in = nullptr;  ///< [count] fp32
  const float* m_in = nullptr;
  const float* v_in = nullptr;
  float* master_out = nullptr;
  float* m_out = nullptr;
  float* v_out = nullptr;
  void* parameters_out = nullptr;  ///< [count] of parameter_dtype; nullptr: none are written
  std::size_t count = 0;
  /// Software prefetch this many parameters ahead; 0: none. Never changes a bit. What is best
  /// depends on the processor: 512 gains on Sapphire Rapids and loses on Zen.
  std::size_t prefetch_distance = 0;
};

/// Kernels with a vector path write 16-bit parameters with non-temporal stores, fenced before they
/// return, wherever `parameters_out` has the alignment of its type.
using UpdateFunction = void (*)(const UpdateScalars&, const UpdateRange&);

/// One row of the kernel table, such as {"avx2_bf16_bf16", ...}: gradients, then parameters.
struct Kernel {
  std::string_view name;
  Isa isa;
  DType gradient_dtype;
  DType parameter_dtype;
  UpdateFunction update;
};

/// Every kernel in this build; dispatch, tests and benchmark iterate it.
[[nodiscard]] std::span<const Kernel> kernels();
/// Asks the CPU and the operating system.
[[nodiscard]] bool supported(Isa isa);
[[nodiscard]] Isa best_isa();
[[nodiscard]] std::string_view name_of(Isa isa);
/// Throws `Error{invalid_argument}` for an unknown name.
[[nodiscard]] Isa parse_isa(std::string_view name);
/// Throws `Error{not_supported}` if this CPU lacks `isa`.
[[nodiscard]] const Kernel& find_kernel(Isa isa, DType gradient, DType parameter);

/// target[i] = master[i], rounded as the update rounds parameters: bf16 to nearest with ties away
/// from zero, fp16 to nearest even. target: [count] of `dtype`; overlaps `master` nowhere.
void cast_parameters(Isa isa, DType dtype, const float* master, void* target, std::size_t count);

/// target[i] = source[i], to nearest even: summed gradients back to their own type.
/// target: [count] of `dtype`; overlaps `source` nowhere.
void round_gradient(Isa isa, DType dtype, const float* source, void* target, std::size_t count);

}  // namespace spillway::cpu_adam
