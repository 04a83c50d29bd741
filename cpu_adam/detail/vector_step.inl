// One step of the optimizers over vectors: the operations of element.hpp, in the same order.
// Part of vector_entries.inl.
#pragma once

#include "cpu_adam/detail/gradient_pass.inl"

namespace spillway::cpu_adam::detail {
namespace {

/// AdamW has a pass of its own; the other optimizers share one and branch in it, always the same
/// way.
enum class Rule { adamw, general };

/// UpdateScalars in every lane.
struct LaneScalars {
  lanes::Float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  lanes::Float step_size, eps, decay_factor, l2;
  Optimizer optimizer;
  bool l2_mode, has_m, has_v;
  RoundingKey key;
};

inline LaneScalars spread(const UpdateScalars& s, RoundingKey key) {
  return {.gradient_scale = lanes::set(s.gradient_scale),
          .beta1 = lanes::set(s.beta1),
          .one_minus_beta1 = lanes::set(s.one_minus_beta1),
          .beta2 = lanes::set(s.beta2),
          .one_minus_beta2 = lanes::set(s.one_minus_beta2),
          .step_size = lanes::set(s.step_size),
          .eps = lanes::set(s.eps),
          .decay_factor = lanes::set(s.decay_factor),
          .l2 = lanes::set(s.l2),
          .optimizer = s.optimizer,
          .l2_mode = s.mode == DecayMode::l2,
          .has_m = uses_m(s.optimizer),
          .has_v = uses_v(s.optimizer),
          .key = key};
}

struct LaneState {
  lanes::Float master, m, v;
};

inline lanes::Float adam_m(const LaneScalars& s, lanes::Float m, lanes::Float g) {
  return lanes::fma(s.beta1, m, s.one_minus_beta1 * g);
}

inline lanes::Float adam_v(const LaneScalars& s, lanes::Float v, lanes::Float g) {
  return lanes::fma(s.beta2, v, s.one_minus_beta2 * g * g);
}

inline lanes::Float adam_denominator(const LaneScalars& s, lanes::Float v) {
  return lanes::sqrt(v) + s.eps;
}

inline lanes::Float adam_master(const LaneScalars& s, lanes::Float m, lanes::Float denominator,
                                lanes::Float kept) {
  return lanes::fnma(s.step_size, m / denominator, kept);
}

inline LaneState adam_step(const LaneScalars& s, const LaneState& old, lanes::Float g,
                           lanes::Float kept) {
  LaneState next;
  next.m = adam_m(s, old.m, g);
  next.v = adam_v(s, old.v, g);
  next.master = adam_master(s, next.m, adam_denominator(s, next.v), kept);
  return next;
}

/// `gradient`: as landed, widened.
template <Rule Which>
inline LaneState step(const LaneScalars& s, const LaneState& old, lanes::Float gradient) {
  lanes::Float g = gradient * s.gradient_scale;
  if constexpr (Which == Rule::adamw) {
    return adam_step(s, old, g, old.master * s.decay_factor);
  } else {
    if (s.l2_mode) g = lanes::fma(s.l2, old.master, g);
    // The factor is 1 in L2 mode, where the plain form does not multiply: the same bits.
    const lanes::Float kept = old.master * s.decay_factor;
    if (s.optimizer == Optimizer::adam) return adam_step(s, old, g, kept);
    LaneState next = old;
    lanes::Float direction;
    if (s.optimizer == Optimizer::adagrad) {
      next.v = lanes::fma(g, g, old.v);
      direction = g / (lanes::sqrt(next.v) + s.eps);
    } else if (s.optimizer == Optimizer::lion) {
      direction = lanes::sign(lanes::fma(s.beta1, old.m, s.one_minus_beta1 * g));
      next.m = lanes::fma(s.beta2, old.m, s.one_minus_beta2 * g);
    } else {
      next.m = lanes::fma(s.beta1, old.m, g);
      direction = next.m;
    }
    next.master = lanes::fnma(s.step_size, direction, kept);
    return next;
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::detail
