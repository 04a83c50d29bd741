// The fused update over vectors. Included once by each instruction set's source, after it has
// defined `Lanes` and SPILLWAY_TARGET (a template cannot carry a target attribute of its
// argument's choosing, and a lambda does not inherit one; so there are none here).
// The operations are those of element.hpp, in the same order.
#include <algorithm>
#include <cstring>

namespace spillway::cpu_adam::detail {
namespace {

/// Parameters in one visit of the loop: a multiple of every vector width, and two cache lines of
/// 16-bit parameters.
inline constexpr std::size_t kVisit = 64;

/// How parameters leave: not at all, or by ordinary or non-temporal stores.
enum class Output { none, store, stream };

/// UpdateScalars in every lane.
struct LaneScalars {
  Lanes::Float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  Lanes::Float sqrt_correction2, step_size, decay_factor, l2, eps;
};

SPILLWAY_TARGET inline LaneScalars spread(const UpdateScalars& s) {
  return {.gradient_scale = Lanes::set(s.gradient_scale),
          .beta1 = Lanes::set(s.beta1),
          .one_minus_beta1 = Lanes::set(s.one_minus_beta1),
          .beta2 = Lanes::set(s.beta2),
          .one_minus_beta2 = Lanes::set(s.one_minus_beta2),
          .sqrt_correction2 = Lanes::set(s.sqrt_correction2),
          .step_size = Lanes::set(s.step_size),
          .decay_factor = Lanes::set(s.decay_factor),
          .l2 = Lanes::set(s.l2),
          .eps = Lanes::set(s.eps)};
}

template <DType Type>
SPILLWAY_TARGET inline void write_parameters(void* base, std::size_t i, Lanes::Float value,
                                             bool stream) {
  std::byte* const target = static_cast<std::byte*>(base) + i * size_of(Type);
  if constexpr (Type == DType::fp32) {
    Lanes::store(reinterpret_cast<float*>(target), value);
  } else {
    const Lanes::Half half =
        Type == DType::bf16 ? Lanes::parameter_to_bf16(value) : Lanes::to_fp16(value);
    if (stream) {
      Lanes::stream_half(target, half);
    } else {
      Lanes::store_half(target, half);
    }
  }
}

template <DType Gradient, DType Parameter, DecayMode Mode, Output Out>
SPILLWAY_TARGET inline void update_vector(const LaneScalars& s, const UpdateRange& range,
                                          std::size_t i) {
  Lanes::Float g = Lanes::mul(widen<Gradient>(range.gradient, i), s.gradient_scale);
  const Lanes::Float master = Lanes::load(range.master_in + i);
  if constexpr (Mode == DecayMode::l2) g = Lanes::fma(s.l2, master, g);
  const Lanes::Float m =
      Lanes::fma(s.beta1, Lanes::load(range.m_in + i), Lanes::mul(s.one_minus_beta1, g));
  const Lanes::Float v = Lanes::fma(s.beta2, Lanes::load(range.v_in + i),
                                    Lanes::mul(Lanes::mul(s.one_minus_beta2, g), g));
  const Lanes::Float denominator =
      Lanes::add(Lanes::div(Lanes::sqrt(v), s.sqrt_correction2), s.eps);
  Lanes::Float kept = master;
  if constexpr (Mode == DecayMode::decoupled) kept = Lanes::mul(master, s.decay_factor);
  const Lanes::Float next = Lanes::fnma(s.step_size, Lanes::div(m, denominator), kept);
  Lanes::store(range.master_out + i, next);
  Lanes::store(range.m_out + i, m);
  Lanes::store(range.v_out + i, v);
  if constexpr (Out != Output::none) {
    write_parameters<Parameter>(range.parameters_out, i, next, Out == Output::stream);
  }
}

template <DType Gradient, DType Parameter, DecayMode Mode, Output Out>
SPILLWAY_TARGET inline void update_visit(const LaneScalars& s, const UpdateRange& range,
                                         std::size_t first) {
  SPILLWAY_UNROLL
  for (std::size_t k = 0; k < kVisit; k += Lanes::kWidth) {
    update_vector<Gradient, Parameter, Mode, Out>(s, range, first + k);
  }
}

/// Fewer than kVisit elements: through zero-padded copies, so that the arithmetic is the same.
template <DType Gradient, DType Parameter, DecayMode Mode, Output Out>
SPILLWAY_TARGET void update_partial(const LaneScalars& s, const UpdateRange& range,
                                    std::size_t first, std::size_t count) {
  if (count == 0) return;
  alignas(kCacheLine) std::byte g[kVisit * sizeof(float)] = {};
  alignas(kCacheLine) std::byte parameters[kVisit * sizeof(float)];
  alignas(kCacheLine) float master[kVisit] = {};
  alignas(kCacheLine) float m[kVisit] = {};
  alignas(kCacheLine) float v[kVisit] = {};
  copy_elements<Gradient>(g, 0, range.gradient, first, count);
  copy_elements<DType::fp32>(master, 0, range.master_in, first, count);
  copy_elements<DType::fp32>(m, 0, range.m_in, first, count);
  copy_elements<DType::fp32>(v, 0, range.v_in, first, count);
  const UpdateRange padded{.gradient = g,
                           .master_in = master,
                           .m_in = m,
                           .v_in = v,
                           .master_out = master,
                           .m_out = m,
                           .v_out = v,
                           .parameters_out = parameters,
                           .count = kVisit};
  constexpr Output kPaddedOut = Out == Output::none ? Output::none : Output::store;
  update_visit<Gradient, Parameter, Mode, kPaddedOut>(s, padded, 0);
  copy_elements<DType::fp32>(range.master_out, first, master, 0, count);
  copy_elements<DType::fp32>(range.m_out, first, m, 0, count);
  copy_elements<DType::fp32>(range.v_out, first, v, 0, count);
  if constexpr (Out != Output::none) {
    copy_elements<Parameter>(range.parameters_out, first, parameters, 0, count);
  }
}

/// Hints at the cache line `offset` bytes from `base`, which may be past the end of the array: a
/// prefetch never faults.
SPILLWAY_TARGET inline void prefetch_line(const void* base, std::size_t offset) {
  const auto address = reinterpret_cast<std::uintptr_t>(base) + offset;
  _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0);
}

template <DType Gradient>
SPILLWAY_TARGET inline void prefetch_visit(const UpdateRange& range, std::size_t first) {
  for (std::size_t k = 0; k < kVisit * size_of(Gradient); k += kCacheLine) {
    prefetch_line(range.gradient, first * size_of(Gradient) + k);
  }
  for (std::size_t k = 0; k < kVisit * sizeof(float); k += kCacheLine) {
    prefetch_line(range.master_in, first * sizeof(float) + k);
    prefetch_line(range.m_in, first * sizeof(float) + k);
    prefetch_line(range.v_in, first * sizeof(float) + k);
  }
}

template <DType Gradient, DType Parameter, DecayMode Mode, Output Out>
[[gnu::noinline]] SPILLWAY_TARGET void update_range(const UpdateScalars& scalars,
                                                    const UpdateRange& given) {
  const LaneScalars s = spread(scalars);
  const UpdateRange range = given;  // a copy, which no store through a pointer can change
  std::size_t i = 0;
  if constexpr (Out == Output::stream) {
    const auto address = reinterpret_cast<std::uintptr_t>(range.parameters_out);
    const std::size_t to_line = (kCacheLine - address % kCacheLine) % kCacheLine;
    i = std::min(to_line / size_of(Parameter), range.count);
    update_partial<Gradient, Parameter, Mode, Out>(s, range, 0, i);
  }
  if (range.prefetch_distance == 0) {
    for (; i + kVisit <= range.count; i += kVisit) {
      update_visit<Gradient, Parameter, Mode, Out>(s, range, i);
    }
  } else {
    for (; i + kVisit <= range.count; i += kVisit) {
      prefetch_visit<Gradient>(range, i + range.prefetch_distance);
      update_visit<Gradient, Parameter, Mode, Out>(s, range, i);
    }
  }
  update_partial<Gradient, Parameter, Mode, Out>(s, range, i, range.count - i);
  // Non-temporal stores are not ordered with the release store that publishes a finished task.
  if constexpr (Out == Output::stream) _mm_sfence();
}

template <DType Gradient, DType Parameter, DecayMode Mode>
void update_with(const UpdateScalars& scalars, const UpdateRange& range) {
  if (range.parameters_out == nullptr) {
    update_range<Gradient, Parameter, Mode, Output::none>(scalars, range);
    return;
  }
  if constexpr (Parameter != DType::fp32) {
    if (reinterpret_cast<std::uintptr_t>(range.parameters_out) % size_of(Parameter) == 0) {
      update_range<Gradient, Parameter, Mode, Output::stream>(scalars, range);
      return;
    }
  }
  update_range<Gradient, Parameter, Mode, Output::store>(scalars, range);
}

}  // namespace
}  // namespace spillway::cpu_adam::detail
