#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/config_keys.hpp"
#include "runtime/engine/detail/schedule_deepspeed.hpp"
#include "runtime/engine/options_table.hpp"
#include "runtime/engine/schedule.hpp"

namespace spillway::engine {
namespace {

/// What is wrong, a sentence each: a configuration is refused for all of it at once.
using Faults = std::vector<std::string>;

void require(Faults& faults, bool condition, std::string_view message) {
  if (!condition) faults.emplace_back(message);
}

template <class Number>
void require_positive(Faults& faults, Number value, std::string_view key) {
  require(faults, value > 0 && value <= std::numeric_limits<Number>::max(),
          fmt::format("{} is {}; it must be positive", key, value));
}

void require_not_negative(Faults& faults, double value, std::string_view key) {
  require(faults, value >= 0 && value <= 1e30,  // beyond that fp32 arithmetic overflows
          fmt::format("{} is {}; it must be from 0 to 1e30", key, value));
}

void validate_batch(Faults& faults, const TrainOptions& options) {
  require_positive(faults, options.micro_batch, "train_micro_batch_size_per_gpu");
  require_positive(faults, options.gradient_accumulation_steps, "gradient_accumulation_steps");
  const bool known = options.rounds > 0 && !options.automatic.accumulation;
  require(faults, !known || options.gradient_accumulation_steps % options.rounds == 0,
          fmt::format("spillway.rounds {} does not divide gradient_accumulation_steps {}",
                      options.rounds, options.gradient_accumulation_steps));
}

/// An update adds eps in fp32, where what is below the normal range counts as zero; Adam's bias
/// correction multiplies it by sqrt(1 - beta2^t), which is least at t = 1.
double least_eps(const TrainOptions& options) {
  const cpu_adam::AdamOptions& adam = options.adam;
  const auto least = static_cast<double>(std::numeric_limits<float>::min());
  const bool corrected = adam.optimizer == cpu_adam::Optimizer::adam && adam.bias_correction;
  if (!corrected || !(adam.beta2 < 1)) return least;
  const bool cycles = options.schedule.kind == ScheduleKind::one_cycle;
  const double beta2 = cycles ? std::max(adam.beta2, kOneCycleBeta2) : adam.beta2;
  return least / std::sqrt(1 - beta2) * (1 + 1e-7);
}

void validate_optimizer(Faults& faults, const TrainOptions& options) {
  const cpu_adam::AdamOptions& adam = options.adam;
  require_not_negative(faults, options.gradient_clipping, "gradient_clipping");
  for (const double beta : {adam.beta1, adam.beta2}) {
    require(faults, beta >= 0 && beta < 1,
            fmt::format("optimizer.params.betas holds {}; each must be in [0, 1)", beta));
  }
  const double least = least_eps(options);
  require(
      faults, adam.eps >= least && adam.eps <= 1e30,
      fmt::format("optimizer.params.eps is {}; with these betas it must be from {:.2g} to 1e30, "
                  "so that no update divides by zero",
                  adam.eps, least));
  require_not_negative(faults, adam.weight_decay, "optimizer.params.weight_decay");
}

void validate_one_cycle(Faults& faults, const OneCycleOptions& cycle) {
  require_not_negative(faults, cycle.min_lr, "scheduler.params.cycle_min_lr");
  require_not_negative(faults, cycle.max_lr, "scheduler.params.cycle_max_lr");
  require_not_negative(faults, cycle.decay_lr_rate, "scheduler.params.decay_lr_rate");
  require_positive(faults, cycle.first_steps, "scheduler.params.cycle_first_step_size");
  require_not_negative(faults, cycle.decay_momentum_rate, "scheduler.params.decay_mom_rate");
  for (const double momentum : {cycle.min_momentum, cycle.max_momentum}) {
    require(faults, momentum >= 0 && momentum < 1,
            fmt::format("scheduler.params has a momentum of {}; cycle_min_mom and cycle_max_mom "
                        "must be in [0, 1)",
                        momentum));
  }
}

void validate_schedule(Faults& faults, const ScheduleOptions& schedule) {
  require_not_negative(faults, schedule.optimizer_lr, "optimizer.params.lr");
  require_not_negative(faults, schedule.peak_lr, "optimizer.params.lr");
  require_not_negative(faults, schedule.warmup_from, "scheduler.params.warmup_min_lr");
  require_not_negative(faults, schedule.minimum_lr, "scheduler.params.min_lr");
  require_not_negative(faults, schedule.warmup_min_ratio, "scheduler.params.warmup_min_ratio");
  require_not_negative(faults, schedule.cosine_min_ratio, "scheduler.params.cos_min_ratio");
  const bool falls = decays(schedule.kind) && !detail::is_deepspeed(schedule.kind);
  require(faults, schedule.minimum_lr <= schedule.peak_lr || !falls,
          fmt::format("scheduler.params.min_lr {} is above the peak {}", schedule.minimum_lr,
                      schedule.peak_lr));
  if (schedule.kind == ScheduleKind::one_cycle) validate_one_cycle(faults, schedule.one_cycle);
  if (schedule.kind == ScheduleKind::lr_range_test) {
    require_not_negative(faults, schedule.range_test.min_lr,
                         "scheduler.params.lr_range_test_min_lr");
    require_positive(faults, schedule.range_test.step_size,
                     "scheduler.params.lr_range_test_step_size");
    require_not_negative(faults, schedule.range_test.step_rate,
                         "scheduler.params.lr_range_test_step_rate");
  }
}

void validate_loss_scale(Faults& faults, const LossScaleOptions& scale) {
  require_positive(faults, scale.window, "fp16.loss_scale_window");
  require_positive(faults, scale.hysteresis, "fp16.hysteresis");
  const bool in_range = scale.initial > 0 && scale.initial <= kMaxLossScale;
  if (!scale.dynamic) {
    require(faults, in_range,
            fmt::format("fp16.loss_scale is {}; it must be in (0, 2^100]", scale.initial));
    return;
  }
  int exponent = 0;
  require(faults, in_range && std::frexp(scale.initial, &exponent) == 0.5,
          fmt::format("the initial loss scale is {}; it must be a power of two up to 2^100",
                      scale.initial));
  require(faults, scale.minimum > 0 && scale.minimum <= scale.initial,
          fmt::format("fp16.min_loss_scale is {}; it must be positive and not above the initial "
                      "scale {}",
                      scale.minimum, scale.initial));
}

void validate_update(Faults& faults, const TrainOptions& options) {
  require(faults, options.state_format == StateFormat::fp32 || options.compute == DType::bf16,
          fmt::format("spillway.state_format {} keeps half of every master in its bf16 parameter, "
                      "and the parameters are {}; write fp32, or enable bf16",
                      config_name(options.state_format), name_of(options.compute)));
  if (options.update != UpdateMode::immediate) return;
  require(faults, options.gradient_clipping == 0,
          "spillway.update immediate excludes clipping, whose norm is known after the last "
          "gradient only; write gradient_clipping 0 or update auto");
  require(
      faults, options.compute != DType::fp16,
      "spillway.update immediate excludes fp16, whose overflow is known after the last gradient "
      "only; write update auto");
}

void validate_placement(Faults& faults, const TrainOptions& options) {
  require(faults, options.tile_parameters % kLeafParameters == 0,
          fmt::format("spillway.tile_parameters is {}; it must be a multiple of {}",
                      options.tile_parameters, kLeafParameters));
  require(faults, options.zero_stage <= 3,
          fmt::format("zero_optimization.stage is {}; write 0 to 3", options.zero_stage));
  if (options.host_link_gbps)
    require_positive(faults, *options.host_link_gbps, "spillway.host_link_gbps");
  if (options.disk_gbps) require_positive(faults, *options.disk_gbps, "spillway.disk_gbps");
  for (const std::filesystem::path& path : options.nvme) {
    require(faults, !path.empty(), "spillway.nvme holds an empty path");
  }
  require(faults, options.save_every == 0 || options.keep > 0,
          "spillway.keep is 0, but spillway.save_every asks for checkpoints to keep");
}

/// The ranges of the table, for options that flags may have set.
void validate_ranges(Faults& faults, const TrainOptions& options) {
  for (const Option& option : options_table()) {
    if (option.write == nullptr || option.high == 0) continue;
    nlohmann::ordered_json json;
    option.write(json, option, options);
    const auto value = json.at(option.key).get<std::uint64_t>();
    require(faults, value >= option.low && value <= option.high,
            fmt::format("{} is {}; it must be {}", option.path(), value, option.type));
  }
}

}  // namespace

void validate(const TrainOptions& options) {
  Faults faults;
  validate_ranges(faults, options);
  validate_batch(faults, options);
  validate_optimizer(faults, options);
  validate_schedule(faults, options.schedule);
  validate_loss_scale(faults, options.loss_scale);
  validate_update(faults, options);
  validate_placement(faults, options);
  check(faults.empty(), ErrorCode::invalid_argument,
        faults.size() == 1 ? faults.front()
                           : fmt::format("the configuration has {} errors\n  {}", faults.size(),
                                         fmt::join(faults, "\n  ")));
}

}  // namespace spillway::engine
