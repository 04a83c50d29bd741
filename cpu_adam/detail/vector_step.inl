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
  Lanes::Float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  Lanes::Float step_size, eps, decay_factor, l2;
  Optimizer optimizer;
  bool l2_mode, has_m, has_v;
  RoundingKey key;
};

SPILLWAY_TARGET inline LaneScalars spread(const UpdateScalars& s, RoundingKey key) {
  return {.gradient_scale = Lanes::set(s.gradient_scale),
          .beta1 = Lanes::set(s.beta1),
          .one_minus_beta1 = Lanes::set(s.one_minus_beta1),
          .beta2 = Lanes::set(s.beta2),
          .one_minus_beta2 = Lanes::set(s.one_minus_beta2),
          .step_size = Lanes::set(s.step_size),
          .eps = Lanes::set(s.eps),
          .decay_factor = Lanes::set(s.decay_factor),
          .l2 = Lanes::set(s.l2),
          .optimizer = s.optimizer,
          .l2_mode = s.mode == DecayMode::l2,
          .has_m = uses_m(s.optimizer),
          .has_v = uses_v(s.optimizer),
          .key = key};
}

struct LaneState {
  Lanes::Float master, m, v;
};

SPILLWAY_TARGET inline LaneState adam_step(const LaneScalars& s, const LaneState& old,
                                           Lanes::Float g, Lanes::Float kept) {
  LaneState next;
  next.m = Lanes::fma(s.beta1, old.m, Lanes::mul(s.one_minus_beta1, g));
  next.v = Lanes::fma(s.beta2, old.v, Lanes::mul(Lanes::mul(s.one_minus_beta2, g), g));
  const Lanes::Float denominator = Lanes::add(Lanes::sqrt(next.v), s.eps);
  next.master = Lanes::fnma(s.step_size, Lanes::div(next.m, denominator), kept);
  return next;
}

/// `gradient`: as landed, widened.
template <Rule Which>
SPILLWAY_TARGET inline LaneState step(const LaneScalars& s, const LaneState& old,
                                      Lanes::Float gradient) {
  Lanes::Float g = Lanes::mul(gradient, s.gradient_scale);
  if constexpr (Which == Rule::adamw) {
    return adam_step(s, old, g, Lanes::mul(old.master, s.decay_factor));
  } else {
    if (s.l2_mode) g = Lanes::fma(s.l2, old.master, g);
    // The factor is 1 in L2 mode, where the plain form does not multiply: the same bits.
    const Lanes::Float kept = Lanes::mul(old.master, s.decay_factor);
    if (s.optimizer == Optimizer::adam) return adam_step(s, old, g, kept);
    LaneState next = old;
    Lanes::Float direction;
    if (s.optimizer == Optimizer::adagrad) {
      next.v = Lanes::fma(g, g, old.v);
      direction = Lanes::div(g, Lanes::add(Lanes::sqrt(next.v), s.eps));
    } else if (s.optimizer == Optimizer::lion) {
      direction = Lanes::sign(Lanes::fma(s.beta1, old.m, Lanes::mul(s.one_minus_beta1, g)));
      next.m = Lanes::fma(s.beta2, old.m, Lanes::mul(s.one_minus_beta2, g));
    } else {
      next.m = Lanes::fma(s.beta1, old.m, g);
      direction = next.m;
    }
    next.master = Lanes::fnma(s.step_size, direction, kept);
    return next;
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::detail
