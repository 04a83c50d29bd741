// Learning-rate schedule and dynamic loss scale: small state machines, pure and bit-stable.
#pragma once

#include <cstdint>

#include "runtime/engine/train_options.hpp"

namespace spillway::engine {

/// `options` with the lengths that depend on the run filled in: total_steps, decay_steps.
[[nodiscard]] ScheduleOptions resolve_schedule(const ScheduleOptions& options,
                                               std::uint64_t run_steps);
/// Learning rate of update `t` (from 1). total_steps must be known where the rate decays. The same
/// bits on every machine: nothing but basic arithmetic is asked of the floating-point unit and the
/// C library.
[[nodiscard]] double learning_rate(const ScheduleOptions& options, std::uint64_t t);

/// The scale that gradients of fp16 carry, saved by every commit. DeepSpeed's rules: an overflow
/// first uses up the hysteresis, then halves the scale; `window` good steps in a row double it and
/// restore the hysteresis.
struct LossScaleState {
  double scale = 1;
  std::uint32_t good_steps = 0;
  std::uint32_t hysteresis_left = 0;  ///< 0: the scale is constant
  bool operator==(const LossScaleState&) const = default;
};

/// Far above what fp16 gradients need; its inverse is still a normal fp32 number.
inline constexpr double kMaxLossScale = 0x1p100;

/// Without `fp16` the scale is 1 for ever.
[[nodiscard]] LossScaleState initial_loss_scale(const LossScaleOptions& options, bool fp16);
/// The state after a step whose gradients were finite, or not.
[[nodiscard]] LossScaleState next_loss_scale(const LossScaleOptions& options,
                                             const LossScaleState& state, bool finite);

}  // namespace spillway::engine
