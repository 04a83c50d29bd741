#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/error.hpp"
#include "runtime/engine/config_keys.hpp"
#include "runtime/engine/detail/schedule_deepspeed.hpp"
#include "runtime/engine/options_table.hpp"
#include "runtime/engine/schedule.hpp"

namespace spillway::engine {
namespace {

using Json = nlohmann::ordered_json;

Json loss_scale_json(const TrainOptions& options) {
  const LossScaleOptions& scale = options.loss_scale;
  Json json;
  json["enabled"] = options.compute == DType::fp16;
  json["loss_scale"] = scale.dynamic ? 0 : scale.initial;
  if (scale.dynamic) json["initial_scale_power"] = std::ilogb(scale.initial);
  json["loss_scale_window"] = scale.window;
  json["hysteresis"] = scale.hysteresis;
  json["consecutive_hysteresis"] = scale.consecutive_hysteresis;
  json["min_loss_scale"] = scale.minimum;
  return json;
}

Json optimizer_json(const TrainOptions& options) {
  const cpu_adam::AdamOptions& adam = options.adam;
  Json params;
  const ScheduleOptions& schedule = options.schedule;
  params["lr"] = detail::is_deepspeed(schedule.kind) ? schedule.optimizer_lr : schedule.peak_lr;
  params["weight_decay"] = adam.weight_decay;
  const auto document = [&](const char* type) { return Json{{"type", type}, {"params", params}}; };
  switch (adam.optimizer) {
    case cpu_adam::Optimizer::sgd: params["momentum"] = adam.beta1; return document("SGD");
    case cpu_adam::Optimizer::adagrad: params["eps"] = adam.eps; return document("Adagrad");
    case cpu_adam::Optimizer::lion:
      params["betas"] = {adam.beta1, adam.beta2};
      return document("Lion");
    case cpu_adam::Optimizer::adam: break;
  }
  params["betas"] = {adam.beta1, adam.beta2};
  params["eps"] = adam.eps;
  params["bias_correction"] = adam.bias_correction;
  if (adam.decay_mode == cpu_adam::DecayMode::decoupled) return document("AdamW");
  params["adam_w_mode"] = false;
  return document("Adam");
}

Json one_cycle_json(const OneCycleOptions& cycle) {
  return {{"cycle_min_lr", cycle.min_lr},
          {"cycle_max_lr", cycle.max_lr},
          {"decay_lr_rate", cycle.decay_lr_rate},
          {"cycle_first_step_size", cycle.first_steps},
          {"cycle_second_step_size", cycle.second_steps},
          {"cycle_first_stair_count", cycle.first_stairs},
          {"cycle_second_stair_count", cycle.second_stairs},
          {"decay_step_size", cycle.decay_step_size},
          {"cycle_momentum", cycle.cycle_momentum},
          {"cycle_min_mom", cycle.min_momentum},
          {"cycle_max_mom", cycle.max_momentum},
          {"decay_mom_rate", cycle.decay_momentum_rate}};
}

Json range_test_json(const RangeTestOptions& test) {
  return {{"lr_range_test_min_lr", test.min_lr},
          {"lr_range_test_step_size", test.step_size},
          {"lr_range_test_step_rate", test.step_rate},
          {"lr_range_test_staircase", test.staircase}};
}

/// What the schedules with a warm-up have; each is written what it reads.
Json warmup_json(const ScheduleOptions& schedule) {
  Json params;
  params["warmup_num_steps"] = schedule.warmup_steps;
  params["warmup_type"] = schedule.warmup_logarithmic ? "log" : "linear";
  if (schedule.kind == ScheduleKind::warmup_cosine_lr) {
    params["warmup_min_ratio"] = schedule.warmup_min_ratio;
    params["cos_min_ratio"] = schedule.cosine_min_ratio;
  } else {
    params["warmup_min_lr"] = schedule.warmup_from;
  }
  const bool own = !detail::is_deepspeed(schedule.kind);
  const bool between_rates = !own && schedule.kind != ScheduleKind::warmup_cosine_lr;
  if (between_rates) params["warmup_max_lr"] = schedule.peak_lr;
  if (decays(schedule.kind)) params["total_num_steps"] = schedule.total_steps;
  if (own) params["min_lr"] = schedule.minimum_lr;
  if (schedule.kind == ScheduleKind::wsd) params["decay_num_steps"] = schedule.decay_steps;
  return params;
}

Json scheduler_json(const ScheduleOptions& schedule) {
  Json params;
  switch (schedule.kind) {
    case ScheduleKind::one_cycle: params = one_cycle_json(schedule.one_cycle); break;
    case ScheduleKind::lr_range_test: params = range_test_json(schedule.range_test); break;
    default: params = warmup_json(schedule); break;
  }
  if (detail::is_deepspeed(schedule.kind)) {
    params["last_batch_iteration"] = schedule.last_batch_iteration;
  }
  return {{"type", config_name(schedule.kind)}, {"params", params}};
}

Json monitor_json(const MonitorOptions& monitor) {
  Json json{{"enabled", monitor.enabled}, {"job_name", monitor.job_name}};
  if (!monitor.output_path.empty()) json["output_path"] = monitor.output_path.string();
  return json;
}

Json spillway_json(const TrainOptions& options) {
  Json json;
  for (const Option& option : options_table()) {
    if (option.write != nullptr) option.write(json, option, options);
  }
  return json;
}

}  // namespace

std::string to_config_json(const TrainOptions& options) {
  Json json;
  json["train_micro_batch_size_per_gpu"] = options.micro_batch;
  json["gradient_accumulation_steps"] = options.gradient_accumulation_steps;
  json["gradient_clipping"] = options.gradient_clipping;
  json["fp16"] = loss_scale_json(options);
  json["bf16"] = {{"enabled", options.compute == DType::bf16}};
  json["optimizer"] = optimizer_json(options);
  json["scheduler"] = scheduler_json(options.schedule);
  json["zero_optimization"] = {{"stage", options.zero_stage}};
  json["tensorboard"] = monitor_json(options.tensorboard);
  json["csv_monitor"] = monitor_json(options.csv_monitor);
  json["spillway"] = spillway_json(options);
  try {
    return json.dump(2) + "\n";
  } catch (const Json::exception&) {  // JSON text is UTF-8; a path need not be
    throw Error(ErrorCode::invalid_argument,
                "spillway.nvme or output_path: a path is not UTF-8 and cannot be written to "
                "config.json; rename the directory");
  }
}

}  // namespace spillway::engine
