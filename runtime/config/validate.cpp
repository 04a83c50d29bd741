#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/config/detail/schedule_deepspeed.hpp"
#include "runtime/config/keys.hpp"
#include "runtime/config/options_table.hpp"
#include "runtime/config/schedule.hpp"

namespace spillway::config {
namespace {

/// What is wrong, a sentence each: a configuration is refused for all of it at once.
using Faults = std::vector<std::string>;

void require(Faults& faults, bool condition, std::string_view message) {
  if (!condition) faults.emplace_back(message);
}

void validate_batch(Faults& faults, const TrainOptions& options) {
  const bool known = options.rounds > 0 && !options.automatic.accumulation;
  require(faults, !known || options.gradient_accumulation_steps % options.rounds == 0,
          fmt::format("spillway.rounds {} does not divide gradient_accumulation_steps {}",
                      options.rounds, options.gradient_accumulation_steps));
  const bool fixed = options.sum_order == SumOrder::fixed;
  require(faults, !known || options.rounds == 1 || options.rounds == rounds_of(options),
          fmt::format("spillway.rounds is {}, and with {} each of the {} micro-batches is a round; "
                      "remove one of the two keys",
                      options.rounds, fixed ? "spillway.sum_order fixed" : "pipeline.stages",
                      options.gradient_accumulation_steps));
}

/// What excludes that stages meet after so many steps.
void validate_meetings(Faults& faults, const TrainOptions& options) {
  const std::uint32_t every = options.pipeline.meet_every;
  if (every <= 1) return;
  const auto exclude = [&](bool condition, std::string_view why) {
    require(faults, !condition, fmt::format("spillway.pipeline_meet_every is {}, {}", every, why));
  };
  exclude(!has_stale_weights(options.pipeline.schedule),
          "and stages need not meet after each step only with the schedules pipedream and "
          "pipedream_2bw; remove it");
  exclude(options.gradient_clipping != 0,
          "and gradient_clipping needs the norm of each step; set gradient_clipping 0, or remove "
          "spillway.pipeline_meet_every");
  exclude(options.compute == DType::fp16 && !options.automatic.fp16,
          "and the loss scale of fp16 needs the norm of each step; use bf16, or remove it");
}

/// What a pipeline needs that is never flushed.
void validate_stale_weights(Faults& faults, const TrainOptions& options) {
  const std::uint32_t stages = options.pipeline.stages;
  const PipelineSchedule schedule = options.pipeline.schedule;
  if (!has_stale_weights(schedule)) return;
  require(faults, stages > 1,
          fmt::format("spillway.pipeline_schedule {} has stale weights, which one stage has no use "
                      "for; set pipeline.stages, or remove the key",
                      config_name(schedule)));
  require(faults,
          options.activations == StateHome::automatic || options.activations == StateHome::device,
          fmt::format("in this version the activations between layers stay on the device with the "
                      "schedule {}; remove spillway.activations, or use the schedule 1f1b",
                      config_name(schedule)));
  const std::uint64_t rounds = options.gradient_accumulation_steps;
  const bool each = schedule == PipelineSchedule::pipedream;
  if (options.automatic.accumulation || stages == 1) return;
  require(faults, !each || rounds == 1,
          fmt::format("gradient_accumulation_steps is {}, and the schedule pipedream updates after "
                      "each micro-batch; set 1, or the schedule pipedream_2bw",
                      rounds));
  require(faults, each || rounds >= stages,
          fmt::format("gradient_accumulation_steps is {}, and the schedule pipedream_2bw of {} "
                      "stages needs at least {}",
                      rounds, stages, stages));
}

/// What layers in tiles exclude in this version.
void validate_operator_tiles(Faults& faults, const TrainOptions& options) {
  if (options.operator_tile == 0) return;
  require(faults, options.pipeline.stages == 1,
          "in this version the layers of a pipeline are not cut into tiles; remove "
          "spillway.operator_tile or pipeline.stages");
  require(faults, options.tensor.ranks == 1,
          "spillway.operator_tile excludes tensor_parallel.autotp_size, which cuts the matrices "
          "itself; remove one of the keys");
  require(faults, !offloads(options.checkpointing),
          "spillway.checkpointing: with spillway.operator_tile saved activations stay on the "
          "device; use \"auto\" instead of \"offload\" or \"nvme\"");
}

/// What a pipeline excludes in this version.
void validate_pipeline(Faults& faults, const TrainOptions& options) {
  const auto& [stages, chunks, schedule, parts, meet_every] = options.pipeline;
  const bool interleaved = schedule == PipelineSchedule::interleaved;
  require(faults, chunks == 1 || interleaved,
          fmt::format("spillway.pipeline_chunks is {}, and only the schedule interleaved has more "
                      "than one in a stage; remove it, or write spillway.pipeline_schedule "
                      "interleaved",
                      chunks));
  const std::uint64_t needed = std::uint64_t{stages} * chunks;
  require(faults, parts.empty() || (stages > 1 && parts.size() == needed),
          fmt::format("spillway.pipeline_parts has {} parts, and {} stages with {} chunks need {}; "
                      "write as many, or remove it",
                      parts.size(), stages, chunks, stages > 1 ? needed : 0));
  validate_stale_weights(faults, options);
  validate_meetings(faults, options);
  if (stages == 1) return;
  require(
      faults,
      !interleaved || options.automatic.accumulation ||
          options.gradient_accumulation_steps % stages == 0,
      fmt::format("gradient_accumulation_steps is {}, and the schedule interleaved of {} stages "
                  "needs a multiple of {}",
                  options.gradient_accumulation_steps, stages, stages));
  require(faults, options.work_order == WorkOrder::layer_major,
          "spillway.work_order micro_batch_major excludes pipeline.stages; remove one of the keys");
  require(faults, options.secondary_ranks == 1,
          "in this version the ranks of a pipeline keep no second copy of parameters; remove "
          "zero_optimization.zero_hpz_partition_size or pipeline.stages");
}

/// What a tensor group excludes in this version.
void validate_tensor(Faults& faults, const TrainOptions& options) {
  require(faults, !options.tensor.sequence || options.tensor.ranks > 1,
          "spillway.sequence_parallel shares out tokens among the ranks of a tensor group; set "
          "tensor_parallel.autotp_size, or remove it");
  if (options.tensor.ranks == 1) return;
  require(faults, options.work_order == WorkOrder::layer_major,
          "spillway.work_order micro_batch_major excludes tensor_parallel.autotp_size; remove one "
          "of the keys");
  require(faults, options.secondary_ranks == 1,
          "in this version the ranks of tensor groups keep no second copy of parameters; remove "
          "zero_optimization.zero_hpz_partition_size or tensor_parallel.autotp_size");
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
  const double least = least_eps(options);
  require(
      faults, !(adam.eps > 0) || adam.eps >= least,
      fmt::format("optimizer.params.eps is {}; with these betas it must be from {:.2g} to 1e30, "
                  "so that no update divides by zero",
                  adam.eps, least));
}

void validate_schedule(Faults& faults, const ScheduleOptions& schedule) {
  const bool falls = decays(schedule.kind) && !detail::is_deepspeed(schedule.kind);
  require(faults, schedule.minimum_lr <= schedule.peak_lr || !falls,
          fmt::format("scheduler.params.min_lr {} is above the peak {}", schedule.minimum_lr,
                      schedule.peak_lr));
}

void validate_loss_scale(Faults& faults, const LossScaleOptions& scale) {
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
  require(faults, !(scale.minimum > scale.initial),
          fmt::format("fp16.min_loss_scale is {}; it must be not above the initial scale {}",
                      scale.minimum, scale.initial));
}

/// What updates exclude in this version that take the next step's passes.
void validate_delay(Faults& faults, const TrainOptions& options) {
  if (options.update != UpdateMode::delayed) return;
  const auto exclude = [&](bool condition, std::string_view key) {
    require(faults, !condition,
            fmt::format("spillway.update delayed excludes {} in this version; remove one of the "
                        "keys, or write update deferred",
                        key));
  };
  exclude(options.pipeline.stages > 1, "pipeline.stages");
  exclude(options.tensor.ranks > 1, "tensor_parallel.autotp_size");
  exclude(options.operator_tile > 0, "spillway.operator_tile");
  exclude(!options.nvme.empty() || options.state_home == StateHome::nvme,
          "optimizer state on disk (spillway.nvme, spillway.state_home)");
}

void validate_update(Faults& faults, const TrainOptions& options) {
  validate_delay(faults, options);
  require(faults, options.state_format == StateFormat::fp32 || options.compute == DType::bf16,
          fmt::format("spillway.state_format {} keeps half of every master in its bf16 parameter, "
                      "and the parameters are {}; write fp32, or enable bf16",
                      config_name(options.state_format), name_of(options.compute)));
}

void validate_placement(Faults& faults, const TrainOptions& options) {
  require(faults, options.tile_parameters % kLeafParameters == 0,
          fmt::format("spillway.tile_parameters is {}; it must be a multiple of {}",
                      options.tile_parameters, kLeafParameters));
  require(faults, options.save_every == 0 || options.keep > 0,
          "spillway.keep is 0, but spillway.save_every asks for checkpoints to keep");
}

/// What the table says of each value, for options that flags may have set.
void validate_domains(Faults& faults, const TrainOptions& options) {
  for (const Option& option : options_table()) {
    const nlohmann::json value = value_of(option, options);
    const std::string fault = value.is_null() ? "" : option.domain.fault_of(value);
    require(faults, fault.empty(),
            fmt::format("{} {}; it must be {}", option.path(), fault, option.domain.in_words()));
  }
}

}  // namespace

void validate(const TrainOptions& options) {
  Faults faults;
  validate_domains(faults, options);
  validate_batch(faults, options);
  validate_pipeline(faults, options);
  validate_tensor(faults, options);
  validate_operator_tiles(faults, options);
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

}  // namespace spillway::config
