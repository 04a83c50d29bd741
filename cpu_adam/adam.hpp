// The Adam(W) update of a range of parameters, in one pass over memory, with the same bits from
// every kernel. Formulas: Kingma & Ba 2015, Loshchilov & Hutter 2019; see docs/architecture.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/dtype.hpp"

namespace spillway::cpu_adam {

enum class Isa : std::uint8_t { scalar, avx2, avx512 };
enum class DecayMode : std::uint8_t { decoupled /* AdamW */, l2 /* Adam */ };

/// Hyperparameters of one parameter group at one step.
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
  float gradient_scale;      ///< inverse loss scale times clip factor
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float sqrt_correction2;    ///< sqrt(1 - beta2^t)
  float step_size;           ///< lr / (1 - beta1^t)
  float decay_factor;        ///< 1 - lr * weight_decay (decoupled)
  float l2;                  ///< weight_decay (l2 mode), else 0
  float eps;
  DecayMode mode;
};

/// `t` counts applied updates from 1.
[[nodiscard]] UpdateScalars make_scalars(const AdamOptions& options, std::uint64_t t,
                                         double gradient_scale);

/// One contiguous range. Inputs and outputs are the same pointers (in place) or do not overlap.
/// No alignment is required.
struct UpdateRange {
  const void* gradient = nullptr;   ///< [count] of gradient_dtype
  const float* master_in = nullptr; ///< [count] fp32
  const float* m_in = nullptr;
  const float* v_in = nullptr;
  float* master_out = nullptr;
  float* m_out = nullptr;
  float* v_out = nullptr;
  void* parameters_out = nullptr;   ///< [count] of parameter_dtype
  std::size_t count = 0;
};

using UpdateFunction = void (*)(const UpdateScalars&, const UpdateRange&);

/// One row of the kernel table. `supported()` asks the CPU.
struct Kernel {
  std::string_view name;
  Isa isa;
  DType gradient_dtype;
  DType parameter_dtype;
  UpdateFunction update;
};

/// Every kernel in this build; dispatch, tests and benchmark iterate it.
[[nodiscard]] std::span<const Kernel> kernels();
[[nodiscard]] bool supported(Isa isa);
[[nodiscard]] Isa best_isa();
[[nodiscard]] std::string_view name_of(Isa isa);
/// Throws `Error{invalid_argument}` for an unknown name.
[[nodiscard]] Isa parse_isa(std::string_view name);
/// Throws `Error{not_supported}` if this CPU lacks `isa`.
[[nodiscard]] const Kernel& find_kernel(Isa isa, DType gradient, DType parameter);

}  // namespace spillway::cpu_adam
