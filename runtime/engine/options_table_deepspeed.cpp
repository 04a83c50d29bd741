#include <array>

#include "runtime/engine/detail/option_builders.hpp"

namespace spillway::engine::detail {
namespace {

using enum Part;

/// A row in words, for what the code of its section reads.
struct Row {
  std::string_view section;
  std::string_view type;
  Words words;
  bool (*counts)(const TrainOptions&) = nullptr;
};

constexpr std::string_view kZero = "zero_optimization";
constexpr std::string_view kOffloadOptimizer = "zero_optimization.offload_optimizer";
constexpr std::string_view kOffloadParam = "zero_optimization.offload_param";
constexpr std::string_view kOptimizer = "optimizer.params";
constexpr std::string_view kSchedule = "scheduler.params";

constexpr std::string_view kFlag = "true or false";
constexpr std::string_view kCount = "a whole number from 1";
constexpr std::string_view kSteps = "a whole number from 0";
constexpr std::string_view kRate = "a number from 0";
constexpr std::string_view kPart = "a number from 0, below 1";

bool fp16(const TrainOptions& options) { return options.compute == DType::fp16; }
bool dynamic_scale(const TrainOptions& options) {
  return fp16(options) && options.loss_scale.dynamic;
}

constexpr std::array kTop = std::to_array<Row>({
    {"",
     kCount,
     {"train_batch_size", mathematics, "micro-batch x accumulation x ranks",
      "windows a step; gives whichever of the next two is absent"}},
    {"", kCount, {"train_micro_batch_size_per_gpu", mathematics, "1", "windows a micro-batch"}},
    {"", kCount, {"gradient_accumulation_steps", mathematics, "1", "micro-batches a step"}},
    {"", kRate, {"gradient_clipping", mathematics, "1.0", "largest global norm; 0: not clipped"}},
    {"fp16", kFlag, {"enabled", mathematics, "false", "parameters and activations in fp16"}},
    {"fp16", kRate, {"loss_scale", mathematics, "0", "a static loss scale; 0: dynamic"}, fp16},
    {"fp16",
     "a whole number from 0 to 100",
     {"initial_scale_power", mathematics, "16", "the dynamic scale starts at 2 to this"},
     dynamic_scale},
    {"fp16",
     kCount,
     {"loss_scale_window", mathematics, "1000", "good steps before the one that doubles the scale"},
     dynamic_scale},
    {"fp16",
     kCount,
     {"hysteresis", mathematics, "2", "overflows before the scale halves"},
     dynamic_scale},
    {"fp16",
     kFlag,
     {"consecutive_hysteresis", mathematics, "false", "every good step restores the hysteresis"},
     dynamic_scale},
    {"fp16",
     "a number above 0",
     {"min_loss_scale", mathematics, "1", "least dynamic scale; an overflow there ends the run"},
     dynamic_scale},
    {"bf16", kFlag, {"enabled", mathematics, "false", "parameters and activations in bf16"}},
    {"bfloat16", kFlag, {"enabled", mathematics, "false", "the old name of `bf16.enabled`"}},
});

constexpr std::array kOptimizerRows = std::to_array<Row>({
    {"optimizer",
     "`AdamW`, `Adam`, `Adagrad`, `Lion` or `SGD`",
     {"type", mathematics, "AdamW", "`Adam` is AdamW unless `adam_w_mode` is false"}},
    {kOptimizer, kRate, {"lr", mathematics, "1e-3; Adagrad: 1e-2", "learning rate"}},
    {kOptimizer, kRate, {"weight_decay", mathematics, "0", "see `spillway.decay`"}},
    {kOptimizer,
     "two numbers from 0, below 1",
     {"betas", mathematics, "[0.9, 0.999]", "of Adam, AdamW and Lion"}},
    {kOptimizer,
     "a number above 0",
     {"eps", mathematics, "1e-8; Adagrad: 1e-10", "of Adam, AdamW and Adagrad"}},
    {kOptimizer, kFlag, {"bias_correction", mathematics, "true", "of Adam and AdamW"}},
    {kOptimizer, kFlag, {"adam_w_mode", mathematics, "true", "of Adam: false is L2 decay"}},
    {kOptimizer, kPart, {"momentum", mathematics, "0", "of SGD"}},
});

constexpr std::array kScheduler = std::to_array<Row>({
    {"scheduler",
     "`Constant`, `Linear`, `Cosine`, `WSD`, `WarmupLR`, `WarmupDecayLR`, `WarmupCosineLR`, "
     "`OneCycle` or `LRRangeTest`",
     {"type", mathematics, "a constant rate", "[user-guide.md](user-guide.md) says what each is"}},
    {kSchedule,
     kSteps,
     {"warmup_num_steps", mathematics, "1000; Spillway's own: 0", "length of the warm-up"}},
    {kSchedule,
     "`log` or `linear`",
     {"warmup_type", mathematics, "log; Spillway's own: linear", "shape of the warm-up"}},
    {kSchedule, kRate, {"warmup_min_lr", mathematics, "0", "rate before the warm-up"}},
    {kSchedule,
     kRate,
     {"warmup_max_lr", mathematics, "`lr` of the optimizer; WarmupDecayLR: 0.001",
      "rate after the warm-up, of WarmupLR and WarmupDecayLR"}},
    {kSchedule,
     kRate,
     {"warmup_min_ratio", mathematics, "0",
      "of WarmupCosineLR: `warmup_min_lr` as a part of `lr`"}},
    {kSchedule,
     kRate,
     {"cos_min_ratio", mathematics, "0.0001", "of WarmupCosineLR: last rate as a part of `lr`"}},
    {kSchedule,
     kSteps,
     {"total_num_steps", mathematics, "the steps of the run", "where the decay ends"}},
    {kSchedule,
     "a whole number from -1",
     {"last_batch_iteration", mathematics, "-1", "where one of DeepSpeed's schedules starts"}},
    {kSchedule, kRate, {"min_lr", mathematics, "0", "of Linear, Cosine and WSD: the last rate"}},
    {kSchedule, kRate, {"min_ratio", mathematics, "0", "`min_lr` as a part of `lr`"}},
    {kSchedule,
     kSteps,
     {"decay_num_steps", mathematics, "a tenth of `total_num_steps`", "of WSD: its last part"}},
    {kSchedule, kRate, {"cycle_min_lr", mathematics, "none: needed", "of OneCycle"}},
    {kSchedule, kRate, {"cycle_max_lr", mathematics, "none: needed", "of OneCycle"}},
    {kSchedule, kRate, {"decay_lr_rate", mathematics, "0", "of OneCycle, behind the cycle"}},
    {kSchedule, kCount, {"cycle_first_step_size", mathematics, "2000", "of OneCycle: rising half"}},
    {kSchedule,
     kSteps,
     {"cycle_second_step_size", mathematics, "as `cycle_first_step_size`",
      "of OneCycle: falling half"}},
    {kSchedule, kSteps, {"cycle_first_stair_count", mathematics, "0: a line", "of OneCycle"}},
    {kSchedule,
     kSteps,
     {"cycle_second_stair_count", mathematics, "as `cycle_first_stair_count`", "of OneCycle"}},
    {kSchedule, kSteps, {"decay_step_size", mathematics, "0: no decay", "of OneCycle"}},
    {kSchedule,
     kFlag,
     {"cycle_momentum", mathematics, "true",
      "of OneCycle: it sets `betas` too, the second to 0.99"}},
    {kSchedule, kPart, {"cycle_min_mom", mathematics, "0.8", "of OneCycle"}},
    {kSchedule, kPart, {"cycle_max_mom", mathematics, "0.9", "of OneCycle"}},
    {kSchedule, kRate, {"decay_mom_rate", mathematics, "0", "of OneCycle, behind the cycle"}},
    {kSchedule, kRate, {"lr_range_test_min_lr", mathematics, "0.001", "of LRRangeTest"}},
    {kSchedule, kCount, {"lr_range_test_step_size", mathematics, "2000", "of LRRangeTest"}},
    {kSchedule, kRate, {"lr_range_test_step_rate", mathematics, "1", "of LRRangeTest"}},
    {kSchedule, kFlag, {"lr_range_test_staircase", mathematics, "false", "of LRRangeTest"}},
});

constexpr std::array kHomes = std::to_array<Row>({
    {kZero, "0, 1, 2 or 3", {"stage", free, "0", "below 3 `offload_param` is ignored"}},
    {kZero, kFlag, {"cpu_offload", free, "false", "old name of `offload_optimizer.device` `cpu`"}},
    {kZero,
     kFlag,
     {"cpu_offload_param", free, "false", "old name of `offload_param.device` `cpu`"}},
    {kOffloadOptimizer,
     "`none`, `cpu` or `nvme`",
     {"device", free, "none", "`spillway.state_home` `device`, `host` or `nvme`"}},
    {kOffloadOptimizer, "a path", {"nvme_path", free, "`RUN/state`", "`spillway.nvme`"}},
    {kOffloadParam,
     "`none`, `cpu` or `nvme`",
     {"device", free, "none", "`cpu` and `nvme` stream every block: `spillway.residency` `none`"}},
    {kOffloadParam, "a path", {"nvme_path", free, "none", "16-bit parameters stay in host memory"}},
    {"activation_checkpointing",
     kFlag,
     {"cpu_checkpointing", free, "false", "true is `spillway.activations` `host`"}},
});

constexpr std::array kMonitors = std::to_array<Row>({
    {"tensorboard", kFlag, {"enabled", free, "false", "writes TensorBoard event files"}},
    {"tensorboard",
     "a path",
     {"output_path", free, "`RUN/tensorboard`", "where; the files lie in a folder `job_name`"}},
    {"tensorboard", "a name", {"job_name", free, "DeepSpeedJobName", "of the folder"}},
    {"csv_monitor", kFlag, {"enabled", free, "false", "writes a CSV file for each scalar"}},
    {"csv_monitor",
     "a path",
     {"output_path", free, "`RUN/csv_monitor`", "where; the files lie in a folder `job_name`"}},
    {"csv_monitor", "a name", {"job_name", free, "DeepSpeedJobName", "of the folder"}},
});

}  // namespace

std::vector<Option> deepspeed_options() {
  std::vector<Option> table;
  const auto add = [&](std::span<const Row> rows) {
    for (const Row& row : rows) {
      table.push_back(given_option(row.section, row.type, row.words));
      table.back().counts = row.counts;
    }
  };
  add(kTop);
  add(kOptimizerRows);
  add(kScheduler);
  add(kHomes);
  add(kMonitors);
  return table;
}

}  // namespace spillway::engine::detail
