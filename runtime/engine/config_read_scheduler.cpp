#include <cmath>
#include <limits>
#include <nlohmann/json_fwd.hpp>

#include "runtime/engine/detail/config_read.hpp"
#include "runtime/engine/detail/schedule_deepspeed.hpp"
#include "runtime/engine/schedule.hpp"

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

/// The scheduler's step before the run's first, which DeepSpeed counts from -1.
void read_last_iteration(Section& params, ScheduleOptions& schedule) {
  constexpr std::string_view kKey = "last_batch_iteration";
  const auto last = params.real(kKey, {"-1"});
  if (!last) return;
  const bool whole = *last >= -1 && *last <= 0x1p52 && *last == std::floor(*last);
  if (!whole) params.refuse_value(kKey, "a whole number from -1 on");
  schedule.last_batch_iteration = static_cast<std::int64_t>(*last);
  if (schedule.last_batch_iteration >= 0) {
    params.note(kKey, fmt::format("the first update has optimizer.params.lr {}, as in DeepSpeed",
                                  schedule.optimizer_lr));
  }
}

/// WarmupLR and WarmupDecayLR: between two learning rates of their own.
void read_warmup_rates(Section& params, ScheduleOptions& schedule) {
  schedule.warmup_from = params.non_negative("warmup_min_lr", {"0"}).value_or(0);
  const bool given = params.has("warmup_max_lr");
  const auto highest = params.non_negative("warmup_max_lr", {"optimizer.params.lr"});
  if (highest) {
    schedule.peak_lr = *highest;
  } else if (!given && schedule.kind == ScheduleKind::warmup_decay_lr) {
    schedule.peak_lr = 0.001;
    params.note("warmup_max_lr", "absent: 0.001, as in DeepSpeed");
  }
  if (schedule.peak_lr != schedule.optimizer_lr) {
    params.note("warmup_max_lr", fmt::format("{} takes the place of optimizer.params.lr {}",
                                             schedule.peak_lr, schedule.optimizer_lr));
  }
}

void read_warmup(Section& params, ScheduleOptions& schedule) {
  schedule.warmup_logarithmic = true;
  read_warmup_type(params, schedule);
  schedule.warmup_steps =
      params.integer("warmup_num_steps", 0, kAnySteps, {"0"})
          .value_or(params.has("warmup_num_steps") ? 0 : 1000);  // absent and "auto" differ
  if (schedule.warmup_steps < 2) {
    params.note("warmup_num_steps", "2 is the least that DeepSpeed's schedules warm up for");
    schedule.warmup_steps = 2;
  }
  if (schedule.kind == ScheduleKind::warmup_cosine_lr) {
    assign(schedule.warmup_min_ratio, params.non_negative("warmup_min_ratio", {"0"}));
    assign(schedule.cosine_min_ratio, params.non_negative("cos_min_ratio", {"0.0001"}));
  } else {
    read_warmup_rates(params, schedule);
  }
  // HF writes total_num_steps for every type; a constant rate has no use for it.
  const auto total = params.integer("total_num_steps", 0, kAnySteps, kRunSteps);
  if (decays(schedule.kind)) {
    schedule.total_steps = total.value_or(0);
  } else if (total) {
    params.note("total_num_steps", "not needed: WarmupLR has no decay");
  }
}

void read_one_cycle(Section& params, const cpu_adam::AdamOptions& adam, OneCycleOptions& cycle) {
  const auto needed = [&](std::string_view key) {
    const auto value = params.non_negative(key);
    if (!value) params.refuse(ErrorCode::invalid_argument, key, "is missing; OneCycle needs it");
    return *value;
  };
  cycle.min_lr = needed("cycle_min_lr");
  cycle.max_lr = needed("cycle_max_lr");
  assign(cycle.decay_lr_rate, params.non_negative("decay_lr_rate", {"0"}));
  assign(cycle.first_steps, params.integer("cycle_first_step_size", 1, kAnySteps, {"2000"}));
  cycle.second_steps =
      params.integer("cycle_second_step_size", 0, kAnySteps, {"cycle_first_step_size"})
          .value_or(cycle.first_steps);
  assign(cycle.first_stairs, params.integer32("cycle_first_stair_count", 0, {"0"}));
  cycle.second_stairs = params.integer32("cycle_second_stair_count", 0, {"cycle_first_stair_count"})
                            .value_or(cycle.first_stairs);
  assign(cycle.decay_step_size, params.integer("decay_step_size", 0, kAnySteps, {"0"}));
  assign(cycle.cycle_momentum, params.flag("cycle_momentum", {"true"}));
  assign(cycle.min_momentum, params.non_negative("cycle_min_mom", {"0.8"}));
  assign(cycle.max_momentum, params.non_negative("cycle_max_mom", {"0.9"}));
  assign(cycle.decay_momentum_rate, params.non_negative("decay_mom_rate", {"0"}));
  const bool betas =
      adam.optimizer == cpu_adam::Optimizer::adam || adam.optimizer == cpu_adam::Optimizer::lion;
  if (cycle.cycle_momentum && betas) {
    params.note("cycle_momentum", "takes the place of optimizer.params.betas; the second is 0.99");
  }
}

void read_range_test(Section& params, RangeTestOptions& test) {
  assign(test.min_lr, params.non_negative("lr_range_test_min_lr", {"0.001"}));
  assign(test.step_size, params.integer("lr_range_test_step_size", 1, kAnySteps, {"2000"}));
  assign(test.step_rate, params.non_negative("lr_range_test_step_rate", {"1"}));
  assign(test.staircase, params.flag("lr_range_test_staircase", {"false"}));
}

void read_deepspeed(Section& params, TrainOptions& options) {
  ScheduleOptions& schedule = options.schedule;
  read_last_iteration(params, schedule);
  switch (schedule.kind) {
    case ScheduleKind::one_cycle: return read_one_cycle(params, options.adam, schedule.one_cycle);
    case ScheduleKind::lr_range_test: return read_range_test(params, schedule.range_test);
    default: return read_warmup(params, schedule);
  }
}

/// Constant, Linear, Cosine and WSD: everything that ScheduleOptions can say.
void read_own(Section& params, ScheduleOptions& schedule) {
  read_warmup_type(params, schedule);
  assign(schedule.warmup_steps, params.integer("warmup_num_steps", 0, kAnySteps, {"0"}));
  assign(schedule.warmup_from, params.non_negative("warmup_min_lr", {"0"}));
  const auto total = params.integer("total_num_steps", 0, kAnySteps, kRunSteps);
  if (decays(schedule.kind)) schedule.total_steps = total.value_or(0);
  const auto lowest = params.non_negative("min_lr");
  const auto ratio = params.non_negative("min_ratio");
  if (lowest && ratio) params.refuse_value("min_ratio", "either min_lr or min_ratio");
  assign(schedule.minimum_lr, std::optional(lowest));
  if (ratio) schedule.minimum_lr = *ratio * schedule.peak_lr;
  if (schedule.kind == ScheduleKind::wsd) {
    assign(schedule.decay_steps,
           params.integer("decay_num_steps", 0, kAnySteps, {"a tenth of total_num_steps"}));
  }
}

}  // namespace

void read_scheduler(Section& root, TrainOptions& options) {
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
  std::string known;
  for (const Named<ScheduleKind>& each : names_of<ScheduleKind>()) {
    if (*type == each.name) {
      options.schedule.kind = each.value;
      return is_deepspeed(each.value) ? read_deepspeed(params, options)
                                      : read_own(params, options.schedule);
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", each.name);
  }
  scheduler.refuse(ErrorCode::invalid_argument, "type",
                   fmt::format("is \"{}\"; write one of {}", type->substr(0, 64), known));
}

}  // namespace spillway::engine::detail
