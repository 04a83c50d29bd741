// The update of a range of parameters in one pass over memory, with the same bits from every
// kernel. Formulas: Adam(W) Kingma & Ba 2015, Loshchilov & Hutter 2019; Adagrad Duchi et al. 2011;
// Lion Chen et al. 2023; SGD with momentum Polyak 1964. State formats: state_format.hpp. See
// docs/cpu_adam.md. Any thread may call anything here; a kernel touches only the ranges that it is
// given.
//
// Special values. Kernels compute to nearest even with FTZ and DAZ, whatever the caller's MXCSR,
// and put that back: an fp32 (or bf16) input below the normal range counts as zero and a result
// below it is zero. fp16 subnormals are ordinary numbers, in and out. A NaN gradient makes master,
// m and v NaN; an infinite one makes master NaN, m and v infinite; so whoever must not lose state
// looks at `sum_squares` first. A gradient whose square overflows makes v infinite and leaves the
// (decayed) master where it is. With eps = 0 a parameter whose v is zero becomes NaN (0 / 0).
// In format int8 a value that is not finite spoils m or v of its whole quantization block.
// A NaN stays a NaN, but its payload and sign may differ between kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "cpu_adam/state_format.hpp"
#include "runtime/base/dtype.hpp"

namespace spillway::cpu_adam {

/// They ascend in speed on the processors that have them. `portable` is vector code without
/// intrinsics, the fast path of processors other than x86-64.
enum class Isa : std::uint8_t { scalar, portable, avx2, avx512 };
enum class Optimizer : std::uint8_t { adam, adagrad, lion, sgd };
/// Where weight decay acts: on the parameter (AdamW), or through the gradient (Adam with L2).
enum class DecayMode : std::uint8_t { decoupled, l2 };

/// Whether an optimizer keeps the first moment (or momentum), and the second. State that it does
/// not keep is neither read nor written.
constexpr bool uses_m(Optimizer optimizer) { return optimizer != Optimizer::adagrad; }
constexpr bool uses_v(Optimizer optimizer) {
  return optimizer == Optimizer::adam || optimizer == Optimizer::adagrad;
}

/// Hyperparameters of one parameter group at one step. They are finite; lr, eps, weight_decay >= 0
/// and betas in [0, 1).
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;  ///< sgd: the momentum
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  DecayMode decay_mode = DecayMode::decoupled;
  bool bias_correction = true;  ///< of Adam
  Optimizer optimizer = Optimizer::adam;
  std::uint64_t rounding_seed = 0;  ///< of the stochastic rounding of format bf16
};

/// The fp32 constants of one update, derived in fp64 once a step.
struct UpdateScalars {
  float gradient_scale;  ///< inverse loss scale times clip factor
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float step_size;     ///< lr * sqrt(1 - beta2^t) / (1 - beta1^t)
  float eps;           ///< eps * sqrt(1 - beta2^t)
  float decay_factor;  ///< 1 - lr * weight_decay (decoupled)
  float l2;            ///< weight_decay (l2 mode), else 0
  DecayMode mode;
  Optimizer optimizer;
  std::uint64_t rounding_seed;
  std::uint64_t t;

  bool operator==(const UpdateScalars&) const = default;
};

/// Scalars of applied update `t`, from 1. `gradient_scale`: inverse loss scale times clip factor.
/// Throws `Error{invalid_argument}` naming the first value outside its range.
[[nodiscard]] UpdateScalars make_scalars(const AdamOptions& options, std::uint64_t t,
                                         double gradient_scale);

/// Arrays of one contiguous range. Inputs and outputs are the same pointers (in place) or do not
/// overlap. No alignment is required, not even that of float; but an update out of place writes
/// with non-temporal stores only if all outputs are aligned to a cache line of 64 bytes (and, in
/// format bf16, `index` is a multiple of 256). Long arrays are read fastest where they are
/// staggered (runtime/base/stagger.hpp).
struct UpdateRange {
  const void* gradient = nullptr;   ///< [count] of gradient_dtype
  const void* master_in = nullptr;  ///< [count]: fp32 master (format fp32), else remainder
  const void* m_in = nullptr;       ///< [count] in the format's moment type
  const void* v_in = nullptr;
  const float* scales_in = nullptr;     ///< [count / 256][2] of m and v (format int8 only)
  const void* parameters_in = nullptr;  ///< [count] bf16; not read in format fp32
  void* master_out = nullptr;
  void* m_out = nullptr;
  void* v_out = nullptr;
  float* scales_out = nullptr;
  void* parameters_out = nullptr;  ///< [count] of parameter_dtype; nullptr (fp32): none are written
  std::size_t count = 0;
  /// Place of the first parameter in its block. Format int8: a multiple of 256, as is `count`
  /// unless the range ends its block. Format bf16: keys the rounding; else unused.
  std::uint64_t index = 0;
  std::uint32_t block = 0;  ///< number of the block: keys the rounding too
  /// Asks for software prefetch this many parameters ahead; 0: none. Never changes a bit. What is
  /// best depends on the processor: 512 gains on Sapphire Rapids and loses on Zen.
  std::size_t prefetch_distance = 0;
};

/// Kernels with a vector path write 16-bit parameters with non-temporal stores, fenced before they
/// return, where format fp32 alone writes them (the other formats have just read them).
using UpdateFunction = void (*)(const UpdateScalars&, const UpdateRange&);

/// One row of the kernel table, such as {"avx2_fp32_bf16_bf16", ...}: instruction set, state
/// format, gradients, parameters.
struct Kernel {
  std::string_view name;
  Isa isa;
  StateFormat format;
  DType gradient_dtype;
  DType parameter_dtype;
  UpdateFunction update;
};

/// Returns every kernel in this build; dispatch, tests and benchmark iterate it.
[[nodiscard]] std::span<const Kernel> kernels();
/// Returns every instruction set of this build, whether or not this CPU has it, ascending.
[[nodiscard]] std::span<const Isa> isas();
/// Whether CPU and operating system have it.
[[nodiscard]] bool supported(Isa isa);
[[nodiscard]] Isa best_isa();
[[nodiscard]] inline Isa isa_or_best(std::optional<Isa> wanted) {
  return wanted ? *wanted : best_isa();
}
[[nodiscard]] std::string_view name_of(Isa isa);
/// Throws `Error{invalid_argument}` for an unknown name.
[[nodiscard]] Isa parse_isa(std::string_view name);
/// Throws `Error{not_supported}` if this CPU lacks `isa`, `Error{invalid_argument}` if the format
/// does not go with parameters of that type (only fp32 goes with others than bf16).
[[nodiscard]] const Kernel& find_kernel(Isa isa, DType gradient, DType parameter,
                                        StateFormat format = StateFormat::fp32);

/// Returns the part of `whole` from parameter `first` on, `count` long.
[[nodiscard]] UpdateRange slice(const Kernel& kernel, const UpdateRange& whole, std::size_t first,
                                std::size_t count);

/// Returns the range that reads the arrays at `in` and writes those at `out` (which may be `in`),
/// all of a tile whose state is laid out as `layout`. `parameters`: where the tile's 16-bit
/// parameters are, read (but in format fp32) and written.
[[nodiscard]] UpdateRange tile_range(const StateLayout& layout, const std::byte* in, std::byte* out,
                                     const void* gradient, const void* parameters_in,
                                     void* parameters_out);

/// Sets target[i] = master[i], rounded as the update rounds parameters: bf16 to nearest with ties
/// away from zero, fp16 to nearest even. target: [count] of `dtype`; overlaps `master` nowhere.
void cast_parameters(Isa isa, DType dtype, const float* master, void* target, std::size_t count);

/// Sets target[i] = source[i], to nearest even: summed gradients back to their own type.
/// target: [count] of `dtype`; overlaps `source` nowhere.
void round_gradient(Isa isa, DType dtype, const float* source, void* target, std::size_t count);

}  // namespace spillway::cpu_adam
