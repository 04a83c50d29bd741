#include "runtime/engine/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

// The C library's cos and log differ in their last bit between versions and processors (they pick
// FMA variants at run time), and a learning rate is part of a run's bits. Sums of a series do not.

/// sum of (-1)^k y^(2k + odd) / (2k + odd)!, for |y| <= pi / 4: below 1e-17 after 10 terms.
double alternating_series(double y, int odd) {
  double term = odd != 0 ? y : 1;
  double sum = term;
  for (int k = 1; k < 10; ++k) {
    const double n = 2 * k + odd;
    term = -term * y * y / (n * (n - 1));
    sum += term;
  }
  return sum;
}

/// cos(pi x) for x in [0, 1], within 4e-16; exactly 1, 0 and -1 at 0, 1/2 and 1.
double cos_pi(double x) {
  if (x > 0.5) return -cos_pi(1 - x);
  if (x <= 0.25) return alternating_series(std::numbers::pi * x, 0);
  return alternating_series(std::numbers::pi * (0.5 - x), 1);
}

/// ln(x) for x >= 1: x = 2^e f with f in [0.7, 1.4], and ln f = 2 artanh((f - 1) / (f + 1)).
double natural_log(double x) {
  int exponent = 0;
  double fraction = std::frexp(x, &exponent);  // exact
  if (fraction < std::numbers::sqrt2 / 2) {
    fraction *= 2;
    --exponent;
  }
  const double z = (fraction - 1) / (fraction + 1);  // at most 0.172: 13 terms leave 1e-21
  double power = z;
  double sum = 0;
  for (int k = 0; k < 13; ++k) {
    sum += power / (2 * k + 1);
    power *= z * z;
  }
  return 2 * sum + exponent * std::numbers::ln2;
}

/// Part of the warm-up that is behind at update t < steps.
double warmup_progress(const ScheduleOptions& options, std::uint64_t t) {
  const auto now = static_cast<double>(t);
  const auto all = static_cast<double>(options.warmup_steps);
  if (!options.warmup_logarithmic) return now / all;
  return t == 0 ? 0 : natural_log(now) / natural_log(all);  // 0 < t < steps, so steps >= 2
}

/// Part of [start, end] that is behind at t, in [0, 1].
double progress_between(std::uint64_t start, std::uint64_t end, std::uint64_t t) {
  if (t >= end) return 1;
  if (t <= start) return 0;
  return static_cast<double>(t - start) / static_cast<double>(end - start);
}

std::uint64_t decay_length(const ScheduleOptions& options) {
  if (options.decay_steps > 0) return options.decay_steps;
  return std::max<std::uint64_t>(1, options.total_steps / 10);
}

/// Part of peak - minimum that is left after the warm-up.
double height(const ScheduleOptions& options, std::uint64_t t) {
  const std::uint64_t total = options.total_steps;
  switch (options.kind) {
    case ScheduleKind::constant: return 1;
    case ScheduleKind::linear: return 1 - progress_between(options.warmup_steps, total, t);
    case ScheduleKind::cosine:
      return (1 + cos_pi(progress_between(options.warmup_steps, total, t))) / 2;
    case ScheduleKind::wsd: {
      const std::uint64_t stable_end = total - std::min(decay_length(options), total);
      return 1 - progress_between(std::max(options.warmup_steps, stable_end), total, t);
    }
  }
  return 1;
}

}  // namespace

ScheduleOptions resolve_schedule(const ScheduleOptions& options, std::uint64_t run_steps) {
  ScheduleOptions resolved = options;
  if (resolved.total_steps == 0) resolved.total_steps = run_steps;
  if (resolved.kind == ScheduleKind::wsd) resolved.decay_steps = decay_length(resolved);
  return resolved;
}

double learning_rate(const ScheduleOptions& options, std::uint64_t t) {
  SPILLWAY_ASSERT(options.kind == ScheduleKind::constant || options.total_steps > 0);
  if (t < options.warmup_steps) {
    return options.warmup_from +
           (options.peak_lr - options.warmup_from) * warmup_progress(options, t);
  }
  const double left = height(options, t);
  if (left == 1) return options.peak_lr;  // not peak - minimum + minimum, which rounds
  return options.minimum_lr + (options.peak_lr - options.minimum_lr) * left;
}

LossScaleState initial_loss_scale(const LossScaleOptions& options, bool fp16) {
  if (!fp16) return {};
  const std::uint32_t hysteresis = options.dynamic ? std::max(1U, options.hysteresis) : 0;
  return {.scale = options.initial, .good_steps = 0, .hysteresis_left = hysteresis};
}

LossScaleState next_loss_scale(const LossScaleOptions& options, const LossScaleState& state,
                               bool finite) {
  if (!options.dynamic || state.hysteresis_left == 0) return state;
  LossScaleState next = state;
  if (!finite) {
    next.good_steps = 0;
    if (state.hysteresis_left > 1) {
      --next.hysteresis_left;
    } else {
      next.scale = std::max(state.scale / 2, options.minimum);
    }
    return next;
  }
  ++next.good_steps;
  const bool grows = next.good_steps >= options.window;
  if (grows) {
    next.good_steps = 0;
    next.scale = std::min(state.scale * 2, kMaxLossScale);
  }
  if (grows || options.consecutive_hysteresis) {
    next.hysteresis_left = std::max(1U, options.hysteresis);
  }
  return next;
}

}  // namespace spillway::engine
