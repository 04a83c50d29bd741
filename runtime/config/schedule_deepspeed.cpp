#include "runtime/config/detail/schedule_deepspeed.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.hpp"
#include "runtime/config/detail/schedule_math.hpp"

namespace spillway::config::detail {
namespace {

// Every expression below is DeepSpeed's, in its order of operations, so that only the last bits of
// log and cos differ. `iteration` is its last_batch_iteration: -1 before the first step.

/// A warm-up of no steps, which DeepSpeed refuses or makes one of two, is none here.
double warmup_length(const ScheduleOptions& options) {
  if (options.warmup_steps == 0) return 0;
  return static_cast<double>(std::max<std::uint64_t>(2, options.warmup_steps));
}

double iteration_of(const ScheduleOptions& options, std::uint64_t t) {
  return static_cast<double>(options.last_batch_iteration) + static_cast<double>(t) - 1;
}

/// True for the first update of a scheduler that is told where it is: its constructor then leaves
/// the optimizer as it finds it.
bool is_left_alone(const ScheduleOptions& options, std::uint64_t t) {
  return t == 1 && options.last_batch_iteration >= 0;
}

double warmup_gamma(const ScheduleOptions& options, double iteration) {
  const double length = warmup_length(options);
  if (!options.warmup_logarithmic) return iteration / length;
  return 1.0 / natural_log(length) * natural_log(iteration + 1);
}

/// WarmupLR, and WarmupDecayLR which differs after the warm-up.
double warmup_rate(const ScheduleOptions& options, double iteration) {
  const double length = warmup_length(options);
  if (iteration < 0 && length > 0) return options.warmup_from;
  double gamma = 1;
  if (iteration < length) {
    gamma = warmup_gamma(options, iteration);
  } else if (options.kind == ScheduleKind::warmup_decay_lr) {
    const auto total = static_cast<double>(options.total_steps);
    gamma = std::clamp((total - iteration) / std::max(1.0, total - length), 0.0, 1.0);
  }
  return options.warmup_from + (options.peak_lr - options.warmup_from) * gamma;
}

double cosine_rate(const ScheduleOptions& options, double iteration) {
  const double length = warmup_length(options);
  if (iteration < 0 && length > 0) return 0;
  if (iteration < length) {
    const double low = options.warmup_min_ratio;
    return options.optimizer_lr * (low + warmup_gamma(options, iteration) * (1 - low));
  }
  const auto total = static_cast<double>(options.total_steps);
  const double progress = std::min(1.0, (iteration - length + 1) / std::max(1.0, total - length));
  const double low = options.cosine_min_ratio;
  return options.optimizer_lr * std::max(0.0, low + (1 - low) * ((1 + cos_pi(progress)) / 2));
}

double range_test_rate(const RangeTestOptions& options, double iteration) {
  if (iteration < 0) return options.min_lr;
  double interval = (iteration + 1) / static_cast<double>(options.step_size);
  if (options.staircase) interval = std::floor(interval);
  return options.min_lr * (1 + options.step_rate * interval);
}

double cycle_size(const OneCycleOptions& cycle) {
  return static_cast<double>(cycle.first_steps) + static_cast<double>(cycle.second_steps);
}

/// Part of the way from the cycle's low end to its high one.
double cycle_scale(const OneCycleOptions& cycle, double iteration) {
  const auto first = static_cast<double>(cycle.first_steps);
  const double total = cycle_size(cycle);
  const double ratio = first / total;
  const double batch = iteration + 1;
  const double x = 1.0 + batch / total - std::floor(1 + batch / total);
  const bool rising = x <= ratio;
  const std::uint32_t stairs = rising ? cycle.first_stairs : cycle.second_stairs;
  if (stairs == 0) return rising ? x / ratio : (x - 1) / (ratio - 1);
  const double within = std::fmod(batch, total);
  const double position = within <= first
                              ? within * stairs / first
                              : (total - within) * stairs / static_cast<double>(cycle.second_steps);
  return std::floor(position) / stairs;
}

double one_cycle_rate(const OneCycleOptions& cycle, double iteration) {
  if (iteration < 0) return cycle.min_lr;
  if (iteration < cycle_size(cycle)) {
    return cycle.min_lr + (cycle.max_lr - cycle.min_lr) * cycle_scale(cycle, iteration);
  }
  if (cycle.decay_step_size == 0 || cycle.decay_lr_rate == 0) return cycle.min_lr;
  const double interval =
      (iteration - cycle_size(cycle) + 1) / static_cast<double>(cycle.decay_step_size);
  return cycle.min_lr / (1 + cycle.decay_lr_rate * interval);
}

}  // namespace

bool is_deepspeed(ScheduleKind kind) { return kind >= ScheduleKind::warmup_lr; }

double deepspeed_rate(const ScheduleOptions& options, std::uint64_t t) {
  if (is_left_alone(options, t)) return options.optimizer_lr;
  const double iteration = iteration_of(options, t);
  switch (options.kind) {
    case ScheduleKind::warmup_lr:
    case ScheduleKind::warmup_decay_lr: return warmup_rate(options, iteration);
    case ScheduleKind::warmup_cosine_lr: return cosine_rate(options, iteration);
    case ScheduleKind::one_cycle: return one_cycle_rate(options.one_cycle, iteration);
    case ScheduleKind::lr_range_test: return range_test_rate(options.range_test, iteration);
    default: break;
  }
  SPILLWAY_ASSERT(false);
  return 0;
}

std::optional<double> one_cycle_momentum(const ScheduleOptions& options, std::uint64_t t) {
  const OneCycleOptions& cycle = options.one_cycle;
  const bool cycles = options.kind == ScheduleKind::one_cycle && cycle.cycle_momentum;
  if (!cycles || is_left_alone(options, t)) return std::nullopt;
  const double iteration = iteration_of(options, t);
  if (iteration < 0) return cycle.min_momentum;
  if (iteration < cycle_size(cycle)) {
    const double height = (cycle.max_momentum - cycle.min_momentum) * cycle_scale(cycle, iteration);
    return cycle.max_momentum - height;
  }
  if (cycle.decay_step_size == 0 || cycle.decay_momentum_rate == 0) return cycle.max_momentum;
  const double interval =
      (iteration - cycle_size(cycle) + 1) / static_cast<double>(cycle.decay_step_size);
  return cycle.max_momentum * (1 + cycle.decay_momentum_rate * interval);
}

}  // namespace spillway::config::detail
