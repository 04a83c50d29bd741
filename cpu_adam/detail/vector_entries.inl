// The entry points of one vector instruction set: they set the floating-point environment and pick
// the instance of a pass. Included once by each instruction set's source, after it has defined
// `Lanes` and SPILLWAY_TARGET; the passes come with it. (A template cannot carry a target attribute
// of its argument's choosing, and a lambda does not inherit one; so no lambda here computes.)
#pragma once

#include "cpu_adam/detail/traffic_pass.inl"

namespace spillway::cpu_adam::detail {
namespace {

struct Entries {
  template <StateFormat Format, DType Gradient, DType Parameter>
  SPILLWAY_TARGET static void update(const UpdateScalars& scalars, RoundingKey key,
                                     const UpdateRange& range) {
    const FlushDenormals guard;
    const LaneScalars s = spread(scalars, key);
    if (scalars.optimizer == Optimizer::adam && scalars.mode == DecayMode::decoupled) {
      update_with<Format, Gradient, Parameter, Rule::adamw>(s, range);
    } else {
      update_with<Format, Gradient, Parameter, Rule::general>(s, range);
    }
  }

  template <DType Type>
  static void sum_squares(const void* gradient, std::size_t count, double* leaves) {
    const FlushDenormals guard;
    for (std::size_t first = 0; first < count; first += kLeafParameters) {
      *leaves++ = leaf_sum<Type>(gradient, first, std::min(kLeafParameters, count - first));
    }
  }

  template <DType Type>
  static void accumulate(const void* source, float* target, std::size_t count, bool first) {
    const FlushDenormals guard;
    accumulate_range<Type>(source, target, count, first);
  }

  template <DType Type>
  static void cast_parameters(const float* master, void* target, std::size_t count) {
    const FlushDenormals guard;
    narrow_range<Type, Rounding::parameter>(master, target, count);
  }

  template <DType Type>
  static void round_gradient(const float* source, void* target, std::size_t count) {
    const FlushDenormals guard;
    narrow_range<Type, Rounding::gradient>(source, target, count);
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail
