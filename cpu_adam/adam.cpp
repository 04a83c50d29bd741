#include "cpu_adam/adam.hpp"

#include <cpuid.h>
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "cpu_adam/detail/kernel_set.hpp"
#include "runtime/base/error.hpp"

namespace spillway::cpu_adam {
namespace {

constexpr std::array kAllIsas = {Isa::scalar, Isa::avx2, Isa::avx512};

// The compilers' own feature test knows F16C by name only in some versions.
bool cpu_has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

std::array<bool, kAllIsas.size()> probe_cpu() {
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return {true, avx2, avx512};
}

const detail::KernelSet& set_of(Isa isa) {
  switch (isa) {
    case Isa::scalar: return detail::kScalarKernels;
    case Isa::avx2: return detail::kAvx2Kernels;
    case Isa::avx512: return detail::kAvx512Kernels;
  }
  SPILLWAY_ASSERT(false && "an Isa outside its enumeration");
}

Kernel row(std::string_view name, Isa isa, DType gradient, DType parameter) {
  const auto& update = set_of(isa).update;
  return {.name = name,
          .isa = isa,
          .gradient_dtype = gradient,
          .parameter_dtype = parameter,
          .update = update[detail::index_of(gradient)][detail::index_of(parameter)]};
}

// Macros because a row's name is made of its own columns.
#define SPILLWAY_ROW(isa, gradient, parameter) \
  row(#isa "_" #gradient "_" #parameter, Isa::isa, DType::gradient, DType::parameter)
#define SPILLWAY_ROWS(isa)                                                                         \
  SPILLWAY_ROW(isa, fp32, fp32), SPILLWAY_ROW(isa, fp32, bf16), SPILLWAY_ROW(isa, fp32, fp16),     \
      SPILLWAY_ROW(isa, bf16, fp32), SPILLWAY_ROW(isa, bf16, bf16), SPILLWAY_ROW(isa, bf16, fp16), \
      SPILLWAY_ROW(isa, fp16, fp32), SPILLWAY_ROW(isa, fp16, bf16), SPILLWAY_ROW(isa, fp16, fp16)

/// base^exponent by squaring: plain multiplications, so that every machine and C library agree.
double power(double base, std::uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

void check_range(bool inside, std::string_view name, double value, std::string_view range) {
  if (inside) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("Adam: {} is {}; it must be {}", name, value, range));
}

void check_options(const AdamOptions& options, std::uint64_t t, double gradient_scale) {
  const auto not_negative = [](std::string_view name, double value) {
    check_range(std::isfinite(value) && value >= 0, name, value, "finite and not negative");
  };
  const auto fraction = [](std::string_view name, double value) {
    check_range(value >= 0 && value < 1, name, value, "at least 0 and below 1");
  };
  not_negative("lr", options.lr);
  fraction("beta1", options.beta1);
  fraction("beta2", options.beta2);
  not_negative("eps", options.eps);
  not_negative("weight_decay", options.weight_decay);
  check_range(std::isfinite(gradient_scale), "gradient_scale", gradient_scale, "finite");
  check_range(t >= 1, "t", 0, "at least 1: it counts applied updates, this one included");
}

}  // namespace

UpdateScalars make_scalars(const AdamOptions& options, std::uint64_t t, double gradient_scale) {
  check_options(options, t, gradient_scale);
  const double correction1 = options.bias_correction ? 1 - power(options.beta1, t) : 1;
  const double correction2 = options.bias_correction ? 1 - power(options.beta2, t) : 1;
  const bool decoupled = options.decay_mode == DecayMode::decoupled;
  return {
      .gradient_scale = static_cast<float>(gradient_scale),
      .beta1 = static_cast<float>(options.beta1),
      .one_minus_beta1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta2 = static_cast<float>(1 - options.beta2),
      .sqrt_correction2 = static_cast<float>(std::sqrt(correction2)),
      .step_size = static_cast<float>(options.lr / correction1),
      .decay_factor = decoupled ? static_cast<float>(1 - options.lr * options.weight_decay) : 1.0F,
      .l2 = decoupled ? 0.0F : static_cast<float>(options.weight_decay),
      .eps = static_cast<float>(options.eps),
      .mode = options.decay_mode};
}

std::span<const Kernel> kernels() {
  static const std::array table = {SPILLWAY_ROWS(scalar), SPILLWAY_ROWS(avx2),
                                   SPILLWAY_ROWS(avx512)};
  return table;
}

bool supported(Isa isa) {
  static const auto available = probe_cpu();  // cpuid is slow under a hypervisor
  return available.at(static_cast<std::size_t>(isa));
}

Isa best_isa() {
  Isa best = Isa::scalar;
  for (const Isa isa : kAllIsas) {
    if (supported(isa)) best = isa;
  }
  return best;
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
  }
  return "unknown";
}

Isa parse_isa(std::string_view name) {
  for (const Isa isa : kAllIsas) {
    if (name == name_of(isa)) return isa;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown instruction set \"{}\"; use scalar, avx2 or avx512", name));
}

const Kernel& find_kernel(Isa isa, DType gradient, DType parameter) {
  static_cast<void>(detail::kernel_set(isa));  // throws where the CPU lacks it
  for (const Kernel& kernel : kernels()) {
    if (kernel.isa == isa && kernel.gradient_dtype == gradient &&
        kernel.parameter_dtype == parameter) {
      return kernel;
    }
  }
  SPILLWAY_ASSERT(false && "the kernel table lacks a combination of types");
}

void cast_parameters(Isa isa, DType dtype, const float* master, void* target, std::size_t count) {
  detail::kernel_set(isa).cast_parameters[detail::index_of(dtype)](master, target, count);
}

void round_gradient(Isa isa, DType dtype, const float* source, void* target, std::size_t count) {
  detail::kernel_set(isa).round_gradient[detail::index_of(dtype)](source, target, count);
}

const detail::KernelSet& detail::kernel_set(Isa isa) {
  if (!supported(isa)) [[unlikely]] {
    throw Error(ErrorCode::not_supported,
                fmt::format("this CPU lacks instruction set {}; the best it has is {}",
                            name_of(isa), name_of(best_isa())));
  }
  return set_of(isa);
}

}  // namespace spillway::cpu_adam
