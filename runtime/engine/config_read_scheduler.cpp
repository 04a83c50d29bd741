#include <array>
#include <limits>
#include <nlohmann/json_fwd.hpp>

#include "runtime/engine/detail/config_read.hpp"

namespace spillway::engine::detail {
namespace {

constexpr std::uint64_t kAnySteps = std::numeric_limits<std::uint64_t>::max();
constexpr AutoMeans kRunSteps{"the steps of the run"};

void read_warmup_type(Section& params, ScheduleOptions& schedule) {
  const auto type = params.text("warmup_type");
  if (!type) return;
  if (*type != "log" && *type != "linear") params.refuse_value("warmup_type", "log or linear");
  schedule.warmup_logarithmic = *type == "log";
}

/// WarmupLR and WarmupDecayLR: between two learning rates of their own.
void read_deepspeed_rates(Section& params, TrainOptions& options) {
  ScheduleOptions& schedule = options.schedule;
  const double optimizer_lr = schedule.peak_lr;
  schedule.warmup_from = params.non_negative("warmup_min_lr", {"0"}).value_or(0);
  schedule.minimum_lr = schedule.warmup_from;
  const AutoMeans of_optimizer{"optimizer.params.lr"};
  const bool given = params.has("warmup_max_lr");
  const auto highest = params.non_negative("warmup_max_lr", of_optimizer);
  if (!given) {
    schedule.peak_lr = 0.001;
    params.note("warmup_max_lr", "absent: 0.001, as in DeepSpeed");
  } else if (highest) {
    schedule.peak_lr = *highest;
  }
  if (schedule.peak_lr != optimizer_lr) {
    params.note("warmup_max_lr", fmt::format("{} takes the place of optimizer.params.lr {}",
                                             schedule.peak_lr, optimizer_lr));
  }
  options.adam.lr = schedule.peak_lr;
}

void read_deepspeed(Section& params, const std::string& type, TrainOptions& options) {
  ScheduleOptions& schedule = options.schedule;
  schedule.warmup_logarithmic = true;
  read_warmup_type(params, schedule);
  schedule.warmup_steps =
      params.integer("warmup_num_steps", 0, kAnySteps, {"0"})
          .value_or(params.has("warmup_num_steps") ? 0 : 1000);  // absent and "auto" differ
  if (type == "WarmupCosineLR") {
    schedule.kind = ScheduleKind::cosine;
    schedule.warmup_from =
        schedule.peak_lr * params.non_negative("warmup_min_ratio", {"0"}).value_or(0);
    schedule.minimum_lr =
        schedule.peak_lr * params.non_negative("cos_min_ratio", {"0.0001"}).value_or(0.0001);
  } else {
    read_deepspeed_rates(params, options);
    schedule.kind = type == "WarmupLR" ? ScheduleKind::constant : ScheduleKind::linear;
  }
  // HF writes total_num_steps for every type; a constant rate has no use for it.
  const auto total = params.integer("total_num_steps", 0, kAnySteps, kRunSteps);
  if (schedule.kind != ScheduleKind::constant) {
    schedule.total_steps = total.value_or(0);
  } else if (total) {
    params.note("total_num_steps", "not needed: WarmupLR has no decay");
  }
}

/// Constant, Linear, Cosine and WSD: everything that ScheduleOptions can say.
void read_own(Section& params, ScheduleKind kind, ScheduleOptions& schedule) {
  schedule.kind = kind;
  read_warmup_type(params, schedule);
  assign(schedule.warmup_steps, params.integer("warmup_num_steps", 0, kAnySteps, {"0"}));
  assign(schedule.warmup_from, params.non_negative("warmup_min_lr", {"0"}));
  assign(schedule.total_steps, params.integer("total_num_steps", 0, kAnySteps, kRunSteps));
  const auto lowest = params.non_negative("min_lr");
  const auto ratio = params.non_negative("min_ratio");
  if (lowest && ratio) params.refuse_value("min_ratio", "either min_lr or min_ratio");
  assign(schedule.minimum_lr, std::optional(lowest));
  if (ratio) schedule.minimum_lr = *ratio * schedule.peak_lr;
  if (kind == ScheduleKind::wsd) {
    assign(schedule.decay_steps,
           params.integer("decay_num_steps", 0, kAnySteps, {"a tenth of total_num_steps"}));
  }
}

}  // namespace

void read_scheduler(Section& root, TrainOptions& options) {
  constexpr std::array<std::string_view, 3> kDeepSpeed{"WarmupLR", "WarmupDecayLR",
                                                       "WarmupCosineLR"};
  Section scheduler = root.section("scheduler");
  Section params = scheduler.section("params");
  const auto type = scheduler.text("type");
  if (!type) {
    if (scheduler.present()) {
      scheduler.refuse(ErrorCode::invalid_argument, "type",
                       "is missing; write a type, or remove the section for a constant rate");
    }
    return;
  }
  for (const std::string_view name : kDeepSpeed) {
    if (*type == name) return read_deepspeed(params, *type, options);
  }
  for (const Named<ScheduleKind>& each : names_of<ScheduleKind>()) {
    if (*type == each.name) return read_own(params, each.value, options.schedule);
  }
  const bool known = *type == "LRRangeTest" || *type == "OneCycle";
  scheduler.refuse(known ? ErrorCode::not_supported : ErrorCode::invalid_argument, "type",
                   fmt::format("is \"{}\"; Spillway has WarmupLR, WarmupDecayLR, WarmupCosineLR, "
                               "Constant, Linear, Cosine and WSD",
                               type->substr(0, 64)));
}

}  // namespace spillway::engine::detail
