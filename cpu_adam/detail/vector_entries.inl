// The entry points of one vector instruction set: they set the floating-point environment and pick
// the instance of a pass. Each instruction set's source includes this once, inside the region that
// is compiled for it, after it has named its vectors `lanes` (runtime/base/simd) and defined
// `Codes`; the passes come with it. A standard header that they need is included before the region.
#pragma once

#include "cpu_adam/detail/traffic_pass.inl"

namespace spillway::cpu_adam::detail {
namespace {

struct Entries {
  template <StateFormat Format, DType Gradient, DType Parameter>
  static void update(const UpdateScalars& scalars, RoundingKey key, const UpdateRange& range) {
    const simd::FlushDenormals guard;
    const LaneScalars s = spread(scalars, key);
    if (scalars.optimizer == Optimizer::adam && scalars.mode == DecayMode::decoupled) {
      update_with<Format, Gradient, Parameter, Rule::adamw>(s, range);
    } else {
      update_with<Format, Gradient, Parameter, Rule::general>(s, range);
    }
  }

  template <DType Type>
  static void sum_squares(const void* gradient, std::size_t count, double* leaves) {
    const simd::FlushDenormals guard;
    for (std::size_t first = 0; first < count; first += kLeafParameters) {
      *leaves++ = leaf_sum<Type>(gradient, first, std::min(kLeafParameters, count - first));
    }
  }

  template <DType Type>
  static void accumulate(const void* source, float* target, std::size_t count, bool first) {
    const simd::FlushDenormals guard;
    accumulate_range<Type>(source, target, count, first);
  }

  template <DType Type>
  static void cast_parameters(const float* master, void* target, std::size_t count) {
    const simd::FlushDenormals guard;
    narrow_range<Type, Rounding::parameter>(master, target, count);
  }

  template <DType Type>
  static void round_gradient(const float* source, void* target, std::size_t count) {
    const simd::FlushDenormals guard;
    narrow_range<Type, Rounding::gradient>(source, target, count);
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail
