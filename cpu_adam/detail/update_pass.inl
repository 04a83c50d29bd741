// The fused update over vectors: the one pass of every optimizer and state format. Part of
// vector_entries.inl.
#pragma once

#include "cpu_adam/detail/state_access.inl"

namespace spillway::cpu_adam::detail {
namespace {

/// Hints at the cache line `offset` bytes from `base`, which may be past the end of the array: a
/// prefetch never faults.
inline void prefetch_line(const void* base, std::size_t offset) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(base) + offset),
                     0, 3);
}

inline void prefetch_array(const void* base, std::size_t size, std::size_t first,
                           std::size_t count) {
  for (std::size_t k = 0; k < count * size; k += kCacheLine) prefetch_line(base, first * size + k);
}

template <StateFormat Format, DType Gradient>
inline void prefetch_visit(const UpdateRange& range, std::size_t first, std::size_t count) {
  prefetch_array(range.gradient, size_of(Gradient), first, count);
  prefetch_array(range.master_in, master_size(Format), first, count);
  prefetch_array(range.m_in, moment_size(Format), first, count);
  prefetch_array(range.v_in, moment_size(Format), first, count);
  if constexpr (needs_parameters(Format)) prefetch_array(range.parameters_in, 2, first, count);
}

template <StateFormat Format, DType Gradient, DType Parameter, Rule Which, Output Out>
inline void update_vector(const LaneScalars& s, Moments<Format>& moments, const UpdateRange& range,
                          std::size_t first, std::size_t k) {
  const std::size_t i = first + k;
  LaneState old;
  old.master = load_master<Format>(range, i);
  old.m = Which == Rule::adamw || s.has_m ? moments.m(range, i) : lanes::set(0);
  old.v = Which == Rule::adamw || s.has_v ? moments.v(range, i) : lanes::set(0);
  const LaneState next = step<Which>(s, old, widen<Gradient>(range.gradient, i));
  store_master<Format, Parameter, Out>(range, i, next.master);
  moments.template write<Out == Output::stream_all>(s, range, i, k, next);
}

template <StateFormat Format, DType Gradient, Output Out>
inline void update_pair(const LaneScalars& s, Moments<Format>& moments, const UpdateRange& range,
                        std::size_t first, std::size_t k) {
  constexpr bool kStream = Out == Output::stream_all;
  const std::size_t i = first + k;
  const lanes::Pair none{lanes::set(0), lanes::set(0)};
  const lanes::Pair master = load_master_pair(range, i);
  const lanes::Pair m = s.has_m ? moments.m(range, i) : none;
  const lanes::Pair v = s.has_v ? moments.v(range, i) : none;
  const lanes::Pair gradient = widen_pair<Gradient>(range.gradient, i);
  const LaneState even = step<Rule::general>(s, {master.even, m.even, v.even}, gradient.even);
  const LaneState odd = step<Rule::general>(s, {master.odd, m.odd, v.odd}, gradient.odd);
  moments.template write<kStream>(s, range, i, k, {even.m, odd.m}, {even.v, odd.v});
  store_master_pair<kStream>(range, i, {even.master, odd.master});
}

/// Numerators and denominators of a visit's steps, each pair as its even and then its odd elements.
template <StateFormat Format>
struct VisitSteps {
  alignas(kCacheLine) float m[Moments<Format>::kVisit];
  alignas(kCacheLine) float denominators[Moments<Format>::kVisit];
};

template <StateFormat Format, DType Gradient, Output Out>
inline void update_moments_pair(const LaneScalars& s, Moments<Format>& moments,
                                const UpdateRange& range, std::size_t first, std::size_t k,
                                VisitSteps<Format>& steps) {
  const std::size_t i = first + k;
  const lanes::Pair landed = widen_pair<Gradient>(range.gradient, i);
  const lanes::Pair g{landed.even * s.gradient_scale, landed.odd * s.gradient_scale};
  const lanes::Pair old_v = moments.v(range, i);
  const lanes::Pair v{adam_v(s, old_v.even, g.even), adam_v(s, old_v.odd, g.odd)};
  lanes::store(steps.denominators + k, adam_denominator(s, v.even));
  lanes::store(steps.denominators + k + lanes::kWidth, adam_denominator(s, v.odd));
  const lanes::Pair old_m = moments.m(range, i);
  const lanes::Pair m{adam_m(s, old_m.even, g.even), adam_m(s, old_m.odd, g.odd)};
  lanes::store(steps.m + k, m.even);
  lanes::store(steps.m + k + lanes::kWidth, m.odd);
  moments.template write<Out == Output::stream_all>(s, range, i, k, m, v);
}

template <StateFormat Format, Output Out>
inline void update_master_pair(const LaneScalars& s, const UpdateRange& range, std::size_t first,
                               std::size_t k, const VisitSteps<Format>& steps) {
  const lanes::Pair old = load_master_pair(range, first + k);
  const auto next = [&](lanes::Float master, std::size_t at) {
    return adam_master(s, lanes::load(steps.m + at), lanes::load(steps.denominators + at),
                       master * s.decay_factor);
  };
  store_master_pair<Out == Output::stream_all>(
      range, first + k, {next(old.even, k), next(old.odd, k + lanes::kWidth)});
}

/// One visit in pairs. AdamW goes over it twice: a pair has so many operations that no processor
/// looks far enough ahead to find others while it waits for square root and quotient in turn.
template <StateFormat Format, DType Gradient, Rule Which, Output Out>
inline void update_pairs(const LaneScalars& s, Moments<Format>& moments, const UpdateRange& range,
                         std::size_t first) {
  constexpr std::size_t kVisit = Moments<Format>::kVisit;
  if constexpr (Which == Rule::adamw) {
    VisitSteps<Format> steps;
    SPILLWAY_UNROLL_BY_2
    for (std::size_t k = 0; k < kVisit; k += kPairWidth) {
      update_moments_pair<Format, Gradient, Out>(s, moments, range, first, k, steps);
    }
    SPILLWAY_UNROLL_BY_2
    for (std::size_t k = 0; k < kVisit; k += kPairWidth) {
      update_master_pair<Format, Out>(s, range, first, k, steps);
    }
  } else {
    for (std::size_t k = 0; k < kVisit; k += kPairWidth) {
      update_pair<Format, Gradient, Out>(s, moments, range, first, k);
    }
  }
}

template <StateFormat Format, DType Gradient, DType Parameter, Rule Which, Output Out>
inline void update_visit(const LaneScalars& s, const UpdateRange& range, std::size_t first) {
  Moments<Format> moments;
  moments.open(s, range, first);
  if constexpr (kPaired<Format>) {
    update_pairs<Format, Gradient, Which, Out>(s, moments, range, first);
  } else {
    SPILLWAY_UNROLL
    for (std::size_t k = 0; k < Moments<Format>::kVisit; k += lanes::kWidth) {
      update_vector<Format, Gradient, Parameter, Which, Out>(s, moments, range, first, k);
    }
  }
  moments.template close<Out == Output::stream_all>(s, range, first);
}

/// Whether results wait for the end of their visit before they are streamed. Elements of 16 bits or
/// fewer in vectors that are narrower than a cache line would stream small parts of lines to
/// several arrays in turn. A processor that cannot join so many writes each part to memory by
/// itself: Zen 3 takes eleven times as long.
template <StateFormat Format, Output Out>
constexpr bool kStaged = Out == Output::stream_all && Format != StateFormat::fp32 &&
                         lanes::kWidth * sizeof(float) < kCacheLine;

/// `Bytes` of one visit from one array to another (or the same).
template <std::size_t Bytes, bool Stream>
inline void move_visit(const void* in, void* out, std::size_t first) {
  constexpr std::size_t kVector = sizeof(lanes::Float);
  SPILLWAY_UNROLL
  for (std::size_t k = 0; k < Bytes; k += kVector) {
    const auto* const source = static_cast<const std::byte*>(in) + first + k;
    std::byte* const target = static_cast<std::byte*>(out) + first + k;
    put<Stream>(reinterpret_cast<float*>(target),
                lanes::load(reinterpret_cast<const float*>(source)));
  }
}

/// Results of one visit, until they are streamed.
template <StateFormat Format, DType Parameter>
struct StagedVisit {
  static constexpr std::size_t kVisit = Moments<Format>::kVisit;
  static constexpr std::size_t kMaster = kVisit * master_size(Format);
  static constexpr std::size_t kMoment = kVisit * moment_size(Format);
  static constexpr std::size_t kParameters = kVisit * size_of(Parameter);
  alignas(kCacheLine) std::byte master[kMaster];
  alignas(kCacheLine) std::byte m[kMoment];
  alignas(kCacheLine) std::byte v[kMoment];
  alignas(kCacheLine) std::byte parameters[kParameters];

  void stream(const LaneScalars& s, const UpdateRange& range, std::size_t first) const {
    move_visit<kMaster, true>(master, out_at<master_size(Format)>(range.master_out, first), 0);
    if (s.has_m) move_visit<kMoment, true>(m, out_at<moment_size(Format)>(range.m_out, first), 0);
    if (s.has_v) move_visit<kMoment, true>(v, out_at<moment_size(Format)>(range.v_out, first), 0);
    move_visit<kParameters, true>(parameters,
                                  out_at<size_of(Parameter)>(range.parameters_out, first), 0);
  }
};

/// Updates one visit. Its range is made of fields, not by `slice`: a struct that is written in
/// parts and read whole waits for all stores before it, the streamed ones too.
template <StateFormat Format, DType Gradient, DType Parameter, Rule Which, Output Out>
inline void update_and_put(const LaneScalars& s, const UpdateRange& range, std::size_t first) {
  if constexpr (kStaged<Format, Out>) {
    StagedVisit<Format, Parameter> staged;
    UpdateRange visit{.gradient = element_at<Gradient>(range.gradient, first),
                      .master_in = advance(range.master_in, master_size(Format), first),
                      .m_in = advance(range.m_in, moment_size(Format), first),
                      .v_in = advance(range.v_in, moment_size(Format), first),
                      .parameters_in = advance(range.parameters_in, size_of(Parameter), first),
                      .master_out = staged.master,
                      .m_out = staged.m,
                      .v_out = staged.v,
                      .parameters_out = staged.parameters,
                      .index = range.index + first};
    if constexpr (Format == StateFormat::int8) {
      const std::size_t scales = first / kQuantizationBlock * 2;
      visit.scales_in = range.scales_in + scales;
      visit.scales_out = range.scales_out + scales;
    }
    update_visit<Format, Gradient, Parameter, Which, Output::store>(s, visit, 0);
    staged.stream(s, range, first);
  } else {
    update_visit<Format, Gradient, Parameter, Which, Out>(s, range, first);
  }
}

/// `count` whole visits from `first` on.
template <StateFormat Format, DType Gradient, DType Parameter, Rule Which, Output Out>
[[gnu::noinline]] void update_visits(const LaneScalars& scalars, const UpdateRange& given,
                                     std::size_t first, std::size_t count) {
  constexpr std::size_t kVisit = Moments<Format>::kVisit;
  LaneScalars s = scalars;  // copies, which no store through a pointer can change
  const UpdateRange range = given;
  if constexpr (Which == Rule::adamw) s.has_m = s.has_v = true;
  const std::size_t last = first + count * kVisit;
  if (range.prefetch_distance == 0) {
    for (std::size_t i = first; i < last; i += kVisit) {
      update_and_put<Format, Gradient, Parameter, Which, Out>(s, range, i);
    }
  } else {
    for (std::size_t i = first; i < last; i += kVisit) {
      prefetch_visit<Format, Gradient>(range, i + range.prefetch_distance, kVisit);
      update_and_put<Format, Gradient, Parameter, Which, Out>(s, range, i);
    }
  }
}

/// Room for one visit, zeros where a short one leaves it unused.
template <StateFormat Format>
struct PaddedVisit {
  static constexpr std::size_t kSize = Moments<Format>::kVisit * sizeof(float);
  alignas(kCacheLine) std::byte gradient[kSize] = {};
  alignas(kCacheLine) std::byte master[kSize] = {};
  alignas(kCacheLine) std::byte m[kSize] = {};
  alignas(kCacheLine) std::byte v[kSize] = {};
  alignas(kCacheLine) std::byte parameters[kSize] = {};
  float scales[2] = {};

  [[nodiscard]] UpdateRange range(std::uint64_t index) {
    return {.gradient = gradient,
            .master_in = master,
            .m_in = m,
            .v_in = v,
            .scales_in = scales,
            .parameters_in = parameters,
            .master_out = master,
            .m_out = m,
            .v_out = v,
            .scales_out = scales,
            .parameters_out = parameters,
            .count = Moments<Format>::kVisit,
            .index = index};
  }
};

/// `count` elements of `size` bytes; nothing if there are none.
inline void copy_part(void* target, const void* source, std::size_t size, std::size_t target_first,
                      std::size_t source_first, std::size_t count) {
  if (target == nullptr || source == nullptr) return;
  std::memcpy(static_cast<std::byte*>(target) + target_first * size,
              static_cast<const std::byte*>(source) + source_first * size, count * size);
}

/// Place of element `first` in its visit. In format bf16 visits are whole in the index, for
/// unmixed_bits; in the others they may start anywhere.
template <StateFormat Format>
inline std::size_t place_in_visit(const UpdateRange& range, std::size_t first) {
  return Format == StateFormat::bf16 ? (range.index + first) % Moments<Format>::kVisit : 0;
}

/// Fewer elements than a visit: through padded copies, so that the arithmetic is the same.
template <StateFormat Format, DType Gradient, DType Parameter, Rule Which, Output Out>
void update_partial(const LaneScalars& s, const UpdateRange& range, std::size_t first,
                    std::size_t count) {
  if (count == 0) return;
  constexpr std::size_t kMaster = master_size(Format);
  constexpr std::size_t kMoment = moment_size(Format);
  const std::size_t block = first / kQuantizationBlock;
  const std::size_t place = place_in_visit<Format>(range, first);
  PaddedVisit<Format> visit;
  copy_part(visit.gradient, range.gradient, size_of(Gradient), place, first, count);
  copy_part(visit.master, range.master_in, kMaster, place, first, count);
  if (s.has_m) copy_part(visit.m, range.m_in, kMoment, place, first, count);
  if (s.has_v) copy_part(visit.v, range.v_in, kMoment, place, first, count);
  if constexpr (Format == StateFormat::int8) {
    copy_part(visit.scales, range.scales_in, sizeof visit.scales, 0, block, 1);
  }
  if constexpr (needs_parameters(Format)) {
    copy_part(visit.parameters, range.parameters_in, 2, place, first, count);
  }
  constexpr Output kPaddedOut = Out == Output::none ? Output::none : Output::store;
  update_visits<Format, Gradient, Parameter, Which, kPaddedOut>(
      s, visit.range(range.index + first - place), 0, 1);
  copy_part(range.master_out, visit.master, kMaster, first, place, count);
  if (s.has_m) copy_part(range.m_out, visit.m, kMoment, first, place, count);
  if (s.has_v) copy_part(range.v_out, visit.v, kMoment, first, place, count);
  if constexpr (Format == StateFormat::int8) {
    copy_part(range.scales_out, visit.scales, sizeof visit.scales, block, 0, 1);
  }
  if constexpr (Out != Output::none) {
    copy_part(range.parameters_out, visit.parameters, size_of(Parameter), first, place, count);
  }
}

/// Elements before the first whole visit.
template <StateFormat Format, DType Parameter, Output Out>
std::size_t head_of(const UpdateRange& range) {
  std::size_t head = 0;
  if constexpr (Out == Output::stream_parameters) {
    const auto address = reinterpret_cast<std::uintptr_t>(range.parameters_out);
    head = (kCacheLine - address % kCacheLine) % kCacheLine / size_of(Parameter);
  } else if (const std::size_t place = place_in_visit<Format>(range, 0); place != 0) {
    head = Moments<Format>::kVisit - place;
  }
  return std::min(head, range.count);
}

template <StateFormat Format, DType Gradient, DType Parameter, Rule Which, Output Out>
void update_range(const LaneScalars& s, const UpdateRange& range) {
  const std::size_t head = head_of<Format, Parameter, Out>(range);
  update_partial<Format, Gradient, Parameter, Which, Out>(s, range, 0, head);
  const std::size_t visits = (range.count - head) / Moments<Format>::kVisit;
  const std::size_t tail = head + visits * Moments<Format>::kVisit;
  update_visits<Format, Gradient, Parameter, Which, Out>(s, range, head, visits);
  update_partial<Format, Gradient, Parameter, Which, Out>(s, range, tail, range.count - tail);
  // Non-temporal stores are not ordered with the release store that publishes a finished task.
  if constexpr (Out == Output::stream_parameters || Out == Output::stream_all) lanes::fence();
}

inline bool on_line(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kCacheLine == 0;
}

/// Out of place, ordinary stores would first read what they overwrite.
inline bool streams_all(const UpdateRange& range) {
  return range.master_in != range.master_out && on_line(range.master_out) && on_line(range.m_out) &&
         on_line(range.v_out) && on_line(range.parameters_out);
}

template <StateFormat Format, DType Gradient, DType Parameter, Rule Which>
void update_with(const LaneScalars& s, const UpdateRange& range) {
  if constexpr (Format == StateFormat::fp32) {
    if (range.parameters_out == nullptr) {
      return update_range<Format, Gradient, Parameter, Which, Output::none>(s, range);
    }
  }
  if (streams_all(range) && place_in_visit<Format>(range, 0) == 0) {
    return update_range<Format, Gradient, Parameter, Which, Output::stream_all>(s, range);
  }
  if constexpr (Format == StateFormat::fp32 && Parameter != DType::fp32) {
    if (reinterpret_cast<std::uintptr_t>(range.parameters_out) % size_of(Parameter) == 0) {
      return update_range<Format, Gradient, Parameter, Which, Output::stream_parameters>(s, range);
    }
  }
  update_range<Format, Gradient, Parameter, Which, Output::store>(s, range);
}

}  // namespace
}  // namespace spillway::cpu_adam::detail
