#include "cpu_adam/adam.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "cpu_adam/detail/kernel_set.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/simd/processor.hpp"

namespace spillway::cpu_adam {
namespace {

#if defined(__x86_64__)
constexpr std::array kAllIsas = {Isa::scalar, Isa::portable, Isa::avx2, Isa::avx512};

std::array<bool, kAllIsas.size()> probe_cpu() {
  return {true, true, simd::has_avx2(), simd::has_avx512()};
}
#else
constexpr std::array kAllIsas = {Isa::scalar, Isa::portable};
constexpr std::array<bool, kAllIsas.size()> probe_cpu() { return {true, true}; }
#endif

const detail::KernelSet& set_of(Isa isa) {
  switch (isa) {
    case Isa::scalar: return detail::kScalarKernels;
    case Isa::portable: return detail::kPortableKernels;
#if defined(__x86_64__)
    case Isa::avx2: return detail::kAvx2Kernels;
    case Isa::avx512: return detail::kAvx512Kernels;
#else
    case Isa::avx2:
    case Isa::avx512: break;
#endif
  }
  SPILLWAY_ASSERT(false && "an Isa outside this build");
}

constexpr std::array kGradients = {DType::fp32, DType::bf16, DType::fp16};

struct KernelTable {
  std::vector<std::string> names;
  std::vector<Kernel> rows;
};

KernelTable make_table() {
  KernelTable table;
  for (const Isa isa : kAllIsas) {
    for (const detail::FormatRow& row : detail::kFormatRows) {
      for (const DType gradient : kGradients) {
        table.names.push_back(fmt::format("{}_{}_{}_{}", name_of(isa), name_of(row.format),
                                          spillway::name_of(gradient),
                                          spillway::name_of(row.parameter)));
        const auto at = static_cast<std::size_t>(&row - detail::kFormatRows);
        table.rows.push_back({.name = {},
                              .isa = isa,
                              .format = row.format,
                              .gradient_dtype = gradient,
                              .parameter_dtype = row.parameter,
                              .update = set_of(isa).update[at][detail::index_of(gradient)]});
      }
    }
  }
  for (std::size_t k = 0; k < table.rows.size(); ++k) table.rows[k].name = table.names[k];
  return table;
}

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
  const bool correct = options.bias_correction && options.optimizer == Optimizer::adam;
  const double correction1 = correct ? 1 - power(options.beta1, t) : 1;
  const double correction2 = correct ? 1 - power(options.beta2, t) : 1;
  const bool decoupled = options.decay_mode == DecayMode::decoupled;
  return {
      .gradient_scale = static_cast<float>(gradient_scale),
      .beta1 = static_cast<float>(options.beta1),
      .one_minus_beta1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta2 = static_cast<float>(1 - options.beta2),
      .step_size = static_cast<float>(options.lr * std::sqrt(correction2) / correction1),
      .eps = static_cast<float>(options.eps * std::sqrt(correction2)),
      .decay_factor = decoupled ? static_cast<float>(1 - options.lr * options.weight_decay) : 1.0F,
      .l2 = decoupled ? 0.0F : static_cast<float>(options.weight_decay),
      .mode = options.decay_mode,
      .optimizer = options.optimizer,
      .rounding_seed = options.rounding_seed,
      .t = t};
}

std::span<const Kernel> kernels() {
  // It is never destroyed: a process may exit while a worker updates.
  static const auto& table = *new KernelTable(make_table());
  return table.rows;
}

std::span<const Isa> isas() { return kAllIsas; }

bool supported(Isa isa) {
  static const auto available = probe_cpu();  // cpuid is slow under a hypervisor
  const auto index = static_cast<std::size_t>(isa);
  return index < available.size() && available[index];
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
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
  }
  return "unknown";
}

Isa parse_isa(std::string_view name) {
  std::string known;
  for (const Isa isa : kAllIsas) {
    if (name == name_of(isa)) return isa;
    known += (known.empty() ? "" : ", ") + std::string(name_of(isa));
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown instruction set \"{}\"; this build has {}", name, known));
}

const Kernel& find_kernel(Isa isa, DType gradient, DType parameter, StateFormat format) {
  static_cast<void>(detail::kernel_set(isa));  // throws where the CPU lacks it
  for (const Kernel& kernel : kernels()) {
    if (kernel.isa == isa && kernel.format == format && kernel.gradient_dtype == gradient &&
        kernel.parameter_dtype == parameter) {
      return kernel;
    }
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("state format {} needs bf16 parameters, not {}; use format fp32",
                          name_of(format), spillway::name_of(parameter)));
}

UpdateRange slice(const Kernel& kernel, const UpdateRange& whole, std::size_t first,
                  std::size_t count) {
  return detail::slice({kernel.format, kernel.parameter_dtype}, kernel.gradient_dtype, whole, first,
                       count);
}

UpdateRange tile_range(const StateLayout& layout, const std::byte* in, std::byte* out,
                       const void* gradient, const void* parameters_in, void* parameters_out) {
  const bool scales = layout.format == StateFormat::int8;
  const auto* const scales_in = reinterpret_cast<const float*>(in + layout.scales);
  return {.gradient = gradient,
          .master_in = in + layout.master,
          .m_in = in + layout.m,
          .v_in = in + layout.v,
          .scales_in = scales ? scales_in : nullptr,
          .parameters_in = parameters_in,
          .master_out = out + layout.master,
          .m_out = out + layout.m,
          .v_out = out + layout.v,
          .scales_out = scales ? reinterpret_cast<float*>(out + layout.scales) : nullptr,
          .parameters_out = parameters_out,
          .count = layout.count};
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
