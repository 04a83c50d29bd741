// Learning-rate schedule and dynamic loss scale: small state machines, pure and bit-stable.
#pragma once

#include <cstdint>

#include "runtime/engine/train_options.hpp"

namespace spillway::engine {

/// Learning rate of update `t` (from 1).
[[nodiscard]] double learning_rate(const ScheduleOptions& options, std::uint64_t t);

/// theory.md, "Dynamic loss scale": saved by every commit.
struct LossScaleState {
  double scale = 1;
  std::uint32_t good_steps = 0;
  std::uint32_t hysteresis_left = 0;
};

[[nodiscard]] LossScaleState initial_loss_scale(const LossScaleOptions& options, bool fp16);
/// The state after a step whose gradients were finite, or not.
[[nodiscard]] LossScaleState next_loss_scale(const LossScaleOptions& options,
                                             const LossScaleState& state, bool finite);

}  // namespace spillway::engine
