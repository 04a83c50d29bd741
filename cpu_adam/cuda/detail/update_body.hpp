// The update of a range in the formats whose state stands element by element: fp32, split, bf16.
// What one thread of the kernel does; the host runs it for every thread to test it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "cpu_adam/codec.hpp"
#include "cpu_adam/cuda/detail/elements.hpp"
#include "cpu_adam/element.hpp"

namespace spillway::cpu_adam::cuda::detail {

/// Describes one launch: a range of one group, whose indices have one upper half.
struct UpdateJob {
  UpdateScalars scalars;
  RoundingKey key;
  UpdateRange range;
  DType parameter;
  Cut cut;
};

/// State of `Count` neighbours in fp32.
template <std::size_t Count>
struct Wide {
  float master[Count];
  float m[Count];
  float v[Count];
};

template <StateFormat Format>
using MomentBits = std::conditional_t<Format == StateFormat::bf16, std::uint16_t, float>;

template <StateFormat Format, std::size_t Count>
SPILLWAY_HOST_DEVICE void read_masters(const UpdateRange& range, std::size_t first,
                                       float (&master)[Count]) {
  if constexpr (Format == StateFormat::fp32) {
    const auto whole = load<float, Count>(range.master_in, first);
    for (std::size_t j = 0; j < Count; ++j) master[j] = whole.values[j];
  } else {
    const auto upper = load<std::uint16_t, Count>(range.parameters_in, first);
    const auto lower = load<std::int16_t, Count>(range.master_in, first);
    for (std::size_t j = 0; j < Count; ++j) {
      master[j] = join_master(upper.values[j], lower.values[j]);
    }
  }
}

template <std::size_t Count>
SPILLWAY_HOST_DEVICE void write_parameters(const UpdateRange& range, DType dtype, std::size_t first,
                                           const float (&master)[Count]) {
  if (range.parameters_out == nullptr) return;
  if (dtype == DType::fp32) {
    Vector<float, Count> out;
    for (std::size_t j = 0; j < Count; ++j) out.values[j] = master[j];
    return store(range.parameters_out, first, out);
  }
  Vector<std::uint16_t, Count> out;
  for (std::size_t j = 0; j < Count; ++j) {
    out.values[j] = dtype == DType::bf16 ? parameter_to_bf16(master[j]) : to_fp16(master[j]);
  }
  store(range.parameters_out, first, out);
}

template <StateFormat Format, std::size_t Count>
SPILLWAY_HOST_DEVICE void write_masters(const UpdateRange& range, std::size_t first,
                                        const float (&master)[Count]) {
  if constexpr (Format == StateFormat::fp32) {
    Vector<float, Count> out;
    for (std::size_t j = 0; j < Count; ++j) out.values[j] = master[j];
    store(range.master_out, first, out);
  } else {
    Vector<std::int16_t, Count> out;
    for (std::size_t j = 0; j < Count; ++j) out.values[j] = remainder_of(master[j]);
    store(range.master_out, first, out);
  }
}

template <StateFormat Format, std::size_t Count>
SPILLWAY_HOST_DEVICE void read_moments(const void* in, std::size_t first, float (&out)[Count]) {
  const auto whole = load<MomentBits<Format>, Count>(in, first);
  for (std::size_t j = 0; j < Count; ++j) {
    if constexpr (Format == StateFormat::bf16) {
      out[j] = from_bf16(whole.values[j]);
    } else {
      out[j] = whole.values[j];
    }
  }
}

/// Takes `shift`, the place of the 16 random bits that round this moment, in those of the
/// parameter.
template <StateFormat Format, std::size_t Count>
SPILLWAY_HOST_DEVICE void write_moments(void* out, std::size_t first, const float (&moments)[Count],
                                        const std::uint32_t (&random)[Count], unsigned shift) {
  Vector<MomentBits<Format>, Count> whole;
  for (std::size_t j = 0; j < Count; ++j) {
    if constexpr (Format == StateFormat::bf16) {
      whole.values[j] = stochastic_bf16(moments[j], (random[j] >> shift) & 0xffffU);
    } else {
      whole.values[j] = moments[j];
    }
  }
  store(out, first, whole);
}

template <class Step, std::size_t Count>
SPILLWAY_HOST_DEVICE void step_each(const Step& step, Wide<Count>& wide,
                                    const float (&gradient)[Count]) {
  for (std::size_t j = 0; j < Count; ++j) {
    const ElementState old{.master = wide.master[j], .m = wide.m[j], .v = wide.v[j]};
    const ElementState next = step(old, gradient[j]);
    wide.master[j] = next.master;
    wide.m[j] = next.m;
    wide.v[j] = next.v;
  }
}

/// Calls update_element of each, the choice of the optimizer made once.
template <std::size_t Count>
SPILLWAY_HOST_DEVICE void update_elements(const UpdateScalars& scalars, Wide<Count>& wide,
                                          const float (&gradient)[Count]) {
  if (scalars.optimizer != Optimizer::adam) {
    step_each([&](ElementState old, float g) { return update_element(scalars, old, g); }, wide,
              gradient);
  } else if (scalars.mode == DecayMode::decoupled) {
    step_each([&](ElementState old,
                  float g) { return update_element<DecayMode::decoupled>(scalars, old, g); },
              wide, gradient);
  } else {
    step_each(
        [&](ElementState old, float g) { return update_element<DecayMode::l2>(scalars, old, g); },
        wide, gradient);
  }
}

template <StateFormat Format, DType Gradient, std::size_t Count>
SPILLWAY_HOST_DEVICE void update_part(const UpdateJob& job, std::size_t first) {
  const UpdateRange& range = job.range;
  const bool has_m = uses_m(job.scalars.optimizer);
  const bool has_v = uses_v(job.scalars.optimizer);
  Wide<Count> wide{};
  const auto landed = load<BitsOf<Gradient>, Count>(range.gradient, first);
  read_masters<Format>(range, first, wide.master);
  if (has_m) read_moments<Format>(range.m_in, first, wide.m);
  if (has_v) read_moments<Format>(range.v_in, first, wide.v);
  float gradient[Count];
  for (std::size_t j = 0; j < Count; ++j) gradient[j] = widen<Gradient>(landed.values[j]);
  update_elements(job.scalars, wide, gradient);
  std::uint32_t random[Count] = {};
  if constexpr (Format == StateFormat::bf16) {
    for (std::size_t j = 0; j < Count; ++j) {
      random[j] = rounding_bits(job.key, static_cast<std::uint32_t>(range.index + first + j));
    }
  }
  write_masters<Format>(range, first, wide.master);
  write_parameters(range, job.parameter, first, wide.master);
  if (has_m) write_moments<Format>(range.m_out, first, wide.m, random, 0);
  if (has_v) write_moments<Format>(range.v_out, first, wide.v, random, 16);
}

/// Runs the share of thread `thread` of `threads`.
template <StateFormat Format, DType Gradient>
SPILLWAY_HOST_DEVICE void update_thread(const UpdateJob& job, std::size_t thread,
                                        std::size_t threads) {
  walk(job.cut, thread, threads, [&](auto count, std::size_t first) {
    update_part<Format, Gradient, decltype(count)::value>(job, first);
  });
}

}  // namespace spillway::cpu_adam::cuda::detail
