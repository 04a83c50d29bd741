// The arithmetic of one parameter's update in fp32, written once. The scalar kernel runs exactly
// this; the vector kernels (detail/vector_step.inl) and a GPU kernel do the same operations in the
// same order, so that they give the same bits.
//
// Every operation is rounded once, to nearest even: fused multiply-adds are spelled out, nothing
// else may be fused (-ffp-contract=off; nvcc --fmad=false), and sqrt and division are the correctly
// rounded ones (nvcc --prec-sqrt=true --prec-div=true). Callers run it with FTZ and DAZ
// (runtime/base/simd/flush_denormals.hpp; nvcc --ftz=true).
#pragma once

#include <cmath>

#include "cpu_adam/adam.hpp"
#include "runtime/base/host_device.hpp"

namespace spillway::cpu_adam {

struct ElementState {
  float master;
  float m;
  float v;
};

/// Applies one step of Adam to an element. `gradient` is the landed gradient widened to fp32, not
/// yet unscaled. Both bias corrections are in the constants (Kingma & Ba 2015, end of section 2):
///   (lr / c1) m / (sqrt(v / c2) + eps) = (lr sqrt(c2) / c1) m / (sqrt(v) + eps sqrt(c2))
template <DecayMode Mode>
SPILLWAY_HOST_DEVICE inline ElementState update_element(const UpdateScalars& scalars,
                                                        ElementState old, float gradient) {
  float g = gradient * scalars.gradient_scale;
  if constexpr (Mode == DecayMode::l2) g = std::fma(scalars.l2, old.master, g);
  const float m = std::fma(scalars.beta1, old.m, scalars.one_minus_beta1 * g);
  const float v = std::fma(scalars.beta2, old.v, (scalars.one_minus_beta2 * g) * g);
  const float denominator = std::sqrt(v) + scalars.eps;
  float kept = old.master;
  if constexpr (Mode == DecayMode::decoupled) kept = old.master * scalars.decay_factor;
  return {.master = std::fma(-scalars.step_size, m / denominator, kept), .m = m, .v = v};
}

/// Applies one step of any optimizer to an element.
///   adagrad: v += g^2; p -= lr g / (sqrt(v) + eps)
///   lion:    p -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g
///   sgd:     m = b1 m + g; p -= lr m
SPILLWAY_HOST_DEVICE inline ElementState update_element(const UpdateScalars& scalars,
                                                        ElementState old, float gradient) {
  if (scalars.optimizer == Optimizer::adam) {
    return scalars.mode == DecayMode::decoupled
               ? update_element<DecayMode::decoupled>(scalars, old, gradient)
               : update_element<DecayMode::l2>(scalars, old, gradient);
  }
  float g = gradient * scalars.gradient_scale;
  if (scalars.mode == DecayMode::l2) g = std::fma(scalars.l2, old.master, g);
  float direction = 0;
  ElementState next = old;
  if (scalars.optimizer == Optimizer::adagrad) {
    next.v = std::fma(g, g, old.v);
    direction = g / (std::sqrt(next.v) + scalars.eps);
  } else if (scalars.optimizer == Optimizer::lion) {
    const float c = std::fma(scalars.beta1, old.m, scalars.one_minus_beta1 * g);
    direction = c < 0 || c > 0 ? std::copysign(1.0F, c) : c;  // zero and NaN stay what they are
    next.m = std::fma(scalars.beta2, old.m, scalars.one_minus_beta2 * g);
  } else {
    next.m = std::fma(scalars.beta1, old.m, g);
    direction = next.m;
  }
  next.master = std::fma(-scalars.step_size, direction, old.master * scalars.decay_factor);
  return next;
}

}  // namespace spillway::cpu_adam
