#include "runtime/config/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/config/detail/schedule_deepspeed.hpp"
#include "runtime/config/detail/schedule_math.hpp"

namespace spillway::config {
namespace {

/// Part of the warm-up that is behind at update t < steps.
double warmup_progress(const ScheduleOptions& options, std::uint64_t t) {
  const auto now = static_cast<double>(t);
  const auto all = static_cast<double>(options.warmup_steps);
  if (!options.warmup_logarithmic) return now / all;
  return t == 0
             ? 0
             : detail::natural_log(now) / detail::natural_log(all);  // 0 < t < steps, so steps >= 2
}

/// Part of [start, end] that is behind at t, in [0, 1].
double progress_between(std::uint64_t start, std::uint64_t end, std::uint64_t t) {
  if (t >= end) return 1;
  if (t <= start) return 0;
  return static_cast<double>(t - start) / static_cast<double>(end - start);
}

std::uint64_t decay_length(const ScheduleOptions& options) {
  return options.decay_steps.value_or(std::max<std::uint64_t>(1, options.total_steps / 10));
}

/// Part of peak - minimum that is left after the warm-up.
double height(const ScheduleOptions& options, std::uint64_t t) {
  const std::uint64_t total = options.total_steps;
  switch (options.kind) {
    case ScheduleKind::linear: return 1 - progress_between(options.warmup_steps, total, t);
    case ScheduleKind::cosine:
      return (1 + detail::cos_pi(progress_between(options.warmup_steps, total, t))) / 2;
    case ScheduleKind::wsd: {
      if (options.decay_steps == 0) return 1;
      const std::uint64_t stable_end = total - std::min(decay_length(options), total);
      return 1 - progress_between(std::max(options.warmup_steps, stable_end), total, t);
    }
    default: break;
  }
  return 1;
}

}  // namespace

bool decays(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::linear:
    case ScheduleKind::cosine:
    case ScheduleKind::wsd:
    case ScheduleKind::warmup_decay_lr:
    case ScheduleKind::warmup_cosine_lr: return true;
    default: return false;
  }
}

ScheduleOptions resolve_schedule(const ScheduleOptions& options, std::uint64_t run_steps) {
  ScheduleOptions resolved = options;
  if (decays(resolved.kind) && resolved.total_steps == 0) resolved.total_steps = run_steps;
  if (resolved.kind == ScheduleKind::wsd) resolved.decay_steps = decay_length(resolved);
  return resolved;
}

std::string describe_end(const ScheduleOptions& given, const ScheduleOptions& resolved,
                         std::uint64_t run_steps) {
  constexpr std::string_view kKey = "scheduler.params.total_num_steps";
  if (!decays(resolved.kind)) return {};
  const std::uint64_t end = resolved.total_steps;
  const double last = learning_rate(resolved, end + 1);
  if (given.total_steps > 0 && run_steps <= end) return {};
  if (given.total_steps > 0) {
    return fmt::format("{}: {}, and the run has {} steps; those behind have the rate {}", kKey, end,
                       run_steps, last);
  }
  check(
      run_steps <= end, ErrorCode::invalid_argument,
      fmt::format("the run is to have {} steps, and its rate falls until step {}, its last one "
                  "when it began; the steps behind would have the rate {}. Start a new run --from "
                  "this one, whose rate falls until its own last step, or write {} {} for steps "
                  "at that rate",
                  run_steps, end, last, kKey, end));
  return fmt::format("{}: absent, the rate falls until step {}, the last one of the run{}", kKey,
                     end, run_steps < end ? " when it began" : "");
}

void check_momentum(const ScheduleOptions& options, std::uint64_t last_step) {
  const auto last = first_momentum(options, last_step);
  check(!last || *last < 1, ErrorCode::invalid_argument,
        fmt::format("scheduler.params.decay_mom_rate {} raises the momentum to {} by step {}; it "
                    "must stay below 1",
                    options.one_cycle.decay_momentum_rate, last.value_or(0), last_step));
}

double learning_rate(const ScheduleOptions& options, std::uint64_t t) {
  SPILLWAY_ASSERT(!decays(options.kind) || options.total_steps > 0);
  if (detail::is_deepspeed(options.kind)) return detail::deepspeed_rate(options, t);
  if (t < options.warmup_steps) {
    return options.warmup_from +
           (options.peak_lr - options.warmup_from) * warmup_progress(options, t);
  }
  const double left = height(options, t);
  if (left == 1) return options.peak_lr;  // not peak - minimum + minimum, which rounds
  return options.minimum_lr + (options.peak_lr - options.minimum_lr) * left;
}

std::optional<double> first_momentum(const ScheduleOptions& options, std::uint64_t t) {
  return detail::one_cycle_momentum(options, t);
}

LossScaleState initial_loss_scale(const LossScaleOptions& options, bool fp16) {
  if (!fp16) return {};
  const std::uint32_t hysteresis = options.dynamic ? std::max(1U, options.hysteresis) : 0;
  return {.scale = options.initial, .good_steps = 0, .hysteresis_left = hysteresis};
}

bool is_at_minimum(const LossScaleOptions& options, const LossScaleState& state) {
  return state.hysteresis_left == 1 && state.scale <= options.minimum;
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
  // The step after each full window doubles, as it is the steps before it that DeepSpeed counts.
  const bool grows = state.good_steps == options.window;
  next.good_steps = grows ? 1 : state.good_steps + 1;
  if (grows) next.scale = std::min(state.scale * 2, kMaxLossScale);
  if (grows || options.consecutive_hysteresis) {
    next.hysteresis_left = std::max(1U, options.hysteresis);
  }
  return next;
}

}  // namespace spillway::config
