#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/error.hpp"
#include "runtime/engine/config_keys.hpp"
#include "runtime/engine/detail/schedule_deepspeed.hpp"
#include "runtime/engine/options_table.hpp"
#include "runtime/engine/schedule.hpp"

namespace spillway::engine {
namespace {

void require(bool condition, std::string_view message) {
  check(condition, ErrorCode::invalid_argument, message);
}

template <class Number>
void require_positive(Number value, std::string_view key) {
  require(value > 0 && value <= std::numeric_limits<Number>::max(),
          fmt::format("{} is {}; it must be positive", key, value));
}

void require_not_negative(double value, std::string_view key) {
  require(value >= 0 && value <= 1e30,  // beyond that fp32 arithmetic overflows
          fmt::format("{} is {}; it must be from 0 to 1e30", key, value));
}

void validate_batch(const TrainOptions& options) {
  require_positive(options.micro_batch, "train_micro_batch_size_per_gpu");
  require_positive(options.gradient_accumulation_steps, "gradient_accumulation_steps");
  require_positive(options.rounds, "spillway.rounds");
  require(options.gradient_accumulation_steps % options.rounds == 0,
          fmt::format("spillway.rounds {} does not divide gradient_accumulation_steps {}",
                      options.rounds, options.gradient_accumulation_steps));
}

void validate_optimizer(const TrainOptions& options) {
  const cpu_adam::AdamOptions& adam = options.adam;
  require_not_negative(options.gradient_clipping, "gradient_clipping");
  for (const double beta : {adam.beta1, adam.beta2}) {
    require(beta >= 0 && beta < 1,
            fmt::format("optimizer.params.betas holds {}; each must be in [0, 1)", beta));
  }
  // The update adds eps in fp32, where what is below the normal range counts as zero.
  require(adam.eps >= static_cast<double>(std::numeric_limits<float>::min()) && adam.eps <= 1e30,
          fmt::format("optimizer.params.eps is {}; it must be from 1.2e-38 to 1e30, so that no "
                      "update divides by zero",
                      adam.eps));
  require_not_negative(adam.weight_decay, "optimizer.params.weight_decay");
}

void validate_one_cycle(const OneCycleOptions& cycle) {
  require_not_negative(cycle.min_lr, "scheduler.params.cycle_min_lr");
  require_not_negative(cycle.max_lr, "scheduler.params.cycle_max_lr");
  require_not_negative(cycle.decay_lr_rate, "scheduler.params.decay_lr_rate");
  require_positive(cycle.first_steps, "scheduler.params.cycle_first_step_size");
  require_not_negative(cycle.decay_momentum_rate, "scheduler.params.decay_mom_rate");
  for (const double momentum : {cycle.min_momentum, cycle.max_momentum}) {
    require(momentum >= 0 && momentum < 1,
            fmt::format("scheduler.params has a momentum of {}; cycle_min_mom and cycle_max_mom "
                        "must be in [0, 1)",
                        momentum));
  }
}

void validate_schedule(const ScheduleOptions& schedule) {
  require_not_negative(schedule.optimizer_lr, "optimizer.params.lr");
  require_not_negative(schedule.peak_lr, "optimizer.params.lr");
  require_not_negative(schedule.warmup_from, "scheduler.params.warmup_min_lr");
  require_not_negative(schedule.minimum_lr, "scheduler.params.min_lr");
  require_not_negative(schedule.warmup_min_ratio, "scheduler.params.warmup_min_ratio");
  require_not_negative(schedule.cosine_min_ratio, "scheduler.params.cos_min_ratio");
  const bool falls = decays(schedule.kind) && !detail::is_deepspeed(schedule.kind);
  require(schedule.minimum_lr <= schedule.peak_lr || !falls,
          fmt::format("scheduler.params.min_lr {} is above the peak {}", schedule.minimum_lr,
                      schedule.peak_lr));
  if (schedule.kind == ScheduleKind::one_cycle) validate_one_cycle(schedule.one_cycle);
  if (schedule.kind == ScheduleKind::lr_range_test) {
    require_not_negative(schedule.range_test.min_lr, "scheduler.params.lr_range_test_min_lr");
    require_positive(schedule.range_test.step_size, "scheduler.params.lr_range_test_step_size");
    require_not_negative(schedule.range_test.step_rate, "scheduler.params.lr_range_test_step_rate");
  }
}

void validate_loss_scale(const LossScaleOptions& scale) {
  require_positive(scale.window, "fp16.loss_scale_window");
  require_positive(scale.hysteresis, "fp16.hysteresis");
  const bool in_range = scale.initial > 0 && scale.initial <= kMaxLossScale;
  if (!scale.dynamic) {
    require(in_range,
            fmt::format("fp16.loss_scale is {}; it must be in (0, 2^100]", scale.initial));
    return;
  }
  int exponent = 0;
  require(in_range && std::frexp(scale.initial, &exponent) == 0.5,
          fmt::format("the initial loss scale is {}; it must be a power of two up to 2^100",
                      scale.initial));
  require(scale.minimum > 0 && scale.minimum <= scale.initial,
          fmt::format("fp16.min_loss_scale is {}; it must be positive and not above the initial "
                      "scale {}",
                      scale.minimum, scale.initial));
}

void validate_update(const TrainOptions& options) {
  require(options.state_format == StateFormat::fp32 || options.compute == DType::bf16,
          fmt::format("spillway.state_format {} keeps half of every master in its bf16 parameter, "
                      "and the parameters are {}; write fp32, or enable bf16",
                      config_name(options.state_format), name_of(options.compute)));
  if (options.update != UpdateMode::immediate) return;
  require(options.gradient_clipping == 0,
          "spillway.update immediate excludes clipping, whose norm is known after the last "
          "gradient only; write gradient_clipping 0 or update auto");
  require(
      options.compute != DType::fp16,
      "spillway.update immediate excludes fp16, whose overflow is known after the last gradient "
      "only; write update auto");
}

void validate_placement(const TrainOptions& options) {
  require(options.tile_parameters > 0 && options.tile_parameters % kLeafParameters == 0,
          fmt::format("spillway.tile_parameters is {}; it must be a multiple of {}",
                      options.tile_parameters, kLeafParameters));
  require(options.zero_stage <= 3,
          fmt::format("zero_optimization.stage is {}; write 0 to 3", options.zero_stage));
  if (options.host_link_gbps) require_positive(*options.host_link_gbps, "spillway.host_link_gbps");
  if (options.disk_gbps) require_positive(*options.disk_gbps, "spillway.disk_gbps");
  for (const std::filesystem::path& path : options.nvme) {
    require(!path.empty(), "spillway.nvme holds an empty path");
  }
  require(options.save_every == 0 || options.keep > 0,
          "spillway.keep is 0, but spillway.save_every asks for checkpoints to keep");
}

/// The ranges of the table, for options that flags may have set.
void validate_ranges(const TrainOptions& options) {
  for (const Option& option : options_table()) {
    if (option.write == nullptr || option.high == 0) continue;
    nlohmann::ordered_json json;
    option.write(json, option, options);
    const auto value = json.at(option.key).get<std::uint64_t>();
    require(value >= option.low && value <= option.high,
            fmt::format("{} is {}; it must be {}", option.path(), value, option.type));
  }
}

}  // namespace

void validate(const TrainOptions& options) {
  validate_ranges(options);
  validate_batch(options);
  validate_optimizer(options);
  validate_schedule(options.schedule);
  validate_loss_scale(options.loss_scale);
  validate_update(options);
  validate_placement(options);
}

}  // namespace spillway::engine
