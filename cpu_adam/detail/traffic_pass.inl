// The loads and stores of the update and nothing else: the limit that it is measured against. Part
// of vector_entries.inl.
#pragma once

#include "cpu_adam/detail/update_pass.inl"

namespace spillway::cpu_adam::detail {
namespace {

template <StateFormat Format, DType Gradient, DType Parameter, Output Out>
inline void move_state(const UpdateRange& range, std::size_t first) {
  constexpr std::size_t kVisit = Moments<Format>::kVisit;
  constexpr std::size_t kMaster = master_size(Format);
  constexpr std::size_t kMoment = moment_size(Format);
  constexpr std::size_t kParameter = size_of(Parameter);
  constexpr bool kStream = Out == Output::stream_all;
  for (std::size_t k = 0; k < kVisit * size_of(Gradient); k += sizeof(lanes::Float)) {
    const auto* const source =
        static_cast<const std::byte*>(range.gradient) + first * size_of(Gradient) + k;
    lanes::consume(lanes::load(reinterpret_cast<const float*>(source)));
  }
  move_visit<kVisit * kMaster, kStream>(range.master_in, range.master_out, first * kMaster);
  move_visit<kVisit * kMoment, kStream>(range.m_in, range.m_out, first * kMoment);
  move_visit<kVisit * kMoment, kStream>(range.v_in, range.v_out, first * kMoment);
  if constexpr (needs_parameters(Format)) {
    move_visit<kVisit * kParameter, kStream>(range.parameters_in, range.parameters_out,
                                             first * kParameter);
  } else if constexpr (Out != Output::none) {
    constexpr bool kStreamParameters = Out != Output::store && Parameter != DType::fp32;
    // Bytes of the master stand for the parameters: they are in a register already.
    const auto* const source =
        static_cast<const std::byte*>(range.master_in) + first * (kMaster - kParameter);
    move_visit<kVisit * kParameter, kStreamParameters>(source, range.parameters_out,
                                                       first * kParameter);
  }
  if constexpr (Format == StateFormat::int8) {
    const std::size_t block = first / kQuantizationBlock;
    std::memcpy(range.scales_out + 2 * block, range.scales_in + 2 * block, 2 * sizeof(float));
  }
}

template <StateFormat Format, DType Gradient, DType Parameter, Output Out>
[[gnu::noinline]] void move_visits(const UpdateRange& given) {
  constexpr std::size_t kVisit = Moments<Format>::kVisit;
  const UpdateRange range = given;  // a copy, which no store through a pointer can change
  const std::size_t last = range.count / kVisit * kVisit;
  for (std::size_t i = 0; i < last; i += kVisit) {
    if (range.prefetch_distance != 0) {
      prefetch_visit<Format, Gradient>(range, i + range.prefetch_distance, kVisit);
    }
    move_state<Format, Gradient, Parameter, Out>(range, i);
  }
  lanes::fence();
}

struct TrafficEntries {
  template <StateFormat Format, DType Gradient, DType Parameter>
  static void move(const UpdateRange& range) {
    if (streams_all(range)) {
      move_visits<Format, Gradient, Parameter, Output::stream_all>(range);
    } else if (range.parameters_out == nullptr) {
      move_visits<Format, Gradient, Parameter, Output::none>(range);
    } else if (on_line(range.parameters_out)) {
      move_visits<Format, Gradient, Parameter, Output::stream_parameters>(range);
    } else {
      move_visits<Format, Gradient, Parameter, Output::store>(range);
    }
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail
