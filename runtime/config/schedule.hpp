// Learning-rate schedule and dynamic loss scale: small state machines, pure and bit-stable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/config/train_options.hpp"

namespace spillway::config {

/// Whether the rate depends on total_steps.
[[nodiscard]] bool decays(ScheduleKind kind);
/// Returns `options` with the lengths that depend on the run filled in: total_steps, decay_steps.
[[nodiscard]] ScheduleOptions resolve_schedule(const ScheduleOptions& options,
                                               std::uint64_t run_steps);
/// Returns one line: where the end of a falling schedule comes from, and what follows it. Empty
/// where `given`, as the file has it, names an end that the run does not pass. `resolved` is the
/// same with its end. Throws `Error{invalid_argument}` where the run passes an end that no file
/// names: that of a resumed run, which began with fewer steps.
[[nodiscard]] std::string describe_end(const ScheduleOptions& given,
                                       const ScheduleOptions& resolved, std::uint64_t run_steps);
/// Throws `Error{invalid_argument}` where a momentum would reach 1 within the run.
void check_momentum(const ScheduleOptions& options, std::uint64_t last_step);
/// Returns the learning rate of applied update `t` (from 1; a skipped step does not count, as in
/// DeepSpeed). total_steps must be known where the rate decays. The same bits on every machine:
/// nothing but basic arithmetic is asked of the floating-point unit and the C library.
[[nodiscard]] double learning_rate(const ScheduleOptions& options, std::uint64_t t);
/// Returns the momentum (Adam's beta1) that the schedule gives update `t`; nothing where it has no
/// say.
[[nodiscard]] std::optional<double> first_momentum(const ScheduleOptions& options, std::uint64_t t);
/// Adam's beta2 wherever the schedule gives a momentum: DeepSpeed's OneCycle sets it too.
inline constexpr double kOneCycleBeta2 = 0.99;

/// Scale of fp16 gradients, saved by every commit. The rules are those of DeepSpeed's
/// DynamicLossScaler: an overflow first uses up the hysteresis, then halves the scale; the good
/// step that follows each `window` good ones in a row doubles it and restores the hysteresis.
struct LossScaleState {
  double scale = 1;
  std::uint32_t good_steps = 0;       ///< in a row, from 1 again after a doubling
  std::uint32_t hysteresis_left = 0;  ///< 0: the scale is constant
  bool operator==(const LossScaleState&) const = default;
};

/// It is far above what fp16 gradients need; its inverse is still a normal fp32 number.
inline constexpr double kMaxLossScale = 0x1p100;

/// First state; scale 1 for ever without `fp16`.
[[nodiscard]] LossScaleState initial_loss_scale(const LossScaleOptions& options, bool fp16);
/// Whether DeepSpeed ends the run at the next overflow: the scale cannot fall any further.
[[nodiscard]] bool is_at_minimum(const LossScaleOptions& options, const LossScaleState& state);
/// Returns the state after a step whose gradients were finite, or not.
[[nodiscard]] LossScaleState next_loss_scale(const LossScaleOptions& options,
                                             const LossScaleState& state, bool finite);

}  // namespace spillway::config
