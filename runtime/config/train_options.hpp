// TrainOptions: the options of a training run, plain, validated once, immutable after.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "nvme_swap/io_engine.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/base/state_format.hpp"
#include "runtime/base/units.hpp"
#include "runtime/data/sampler.hpp"
#include "runtime/plan/orders.hpp"

namespace spillway::config {

/// How the loss scale moves; `next_loss_scale` has the rules. Used with fp16 compute only.
struct LossScaleOptions {
  bool dynamic = true;
  double initial = 65536;               ///< static scale when not dynamic
  std::uint32_t window = 1000;          ///< good steps before the one that doubles the scale
  std::uint32_t hysteresis = 2;         ///< overflows before it halves; restored when it doubles
  bool consecutive_hysteresis = false;  ///< ... and by every good step
  double minimum = 1;
};

/// Spillway's own kinds, then those of DeepSpeed.
enum class ScheduleKind : std::uint8_t {
  constant,
  linear,
  cosine,
  wsd,
  warmup_lr,
  warmup_decay_lr,
  warmup_cosine_lr,
  one_cycle,
  lr_range_test,
};

/// What DeepSpeed's OneCycle alone has; its names.
struct OneCycleOptions {
  double min_lr = 0;
  double max_lr = 0;
  double decay_lr_rate = 0;
  std::uint64_t first_steps = 2000;
  std::uint64_t second_steps = 2000;
  std::uint32_t first_stairs = 0;  ///< 0: no stairs
  std::uint32_t second_stairs = 0;
  std::uint64_t decay_step_size = 0;  ///< 0: no decay
  bool cycle_momentum = true;
  double min_momentum = 0.8;
  double max_momentum = 0.9;
  double decay_momentum_rate = 0;
  bool operator==(const OneCycleOptions&) const = default;
};

/// What DeepSpeed's LRRangeTest alone has.
struct RangeTestOptions {
  double min_lr = 1e-3;
  std::uint64_t step_size = 2000;
  double step_rate = 1;
  bool staircase = false;
  bool operator==(const RangeTestOptions&) const = default;
};

/// Gives the learning rate as a function of the applied-update count t, from 1. Of Spillway's own
/// kinds the warm-up ends and the peak is reached at t = warmup_steps, the minimum at t =
/// total_steps. DeepSpeed's kinds give what its engine would use: schedule.hpp.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::constant;
  double optimizer_lr = 1e-3;  ///< optimizer.params.lr
  double peak_lr = 1e-3;       ///< the same, but for WarmupLR and WarmupDecayLR
  double warmup_from = 0;      ///< lr before the first warm-up step
  std::uint64_t warmup_steps = 0;
  bool warmup_logarithmic = false;  ///< DeepSpeed's warmup_type "log"
  std::uint64_t total_steps = 0;    ///< end of decay; 0: the run's steps
  /// Length of the final decay of wsd; absent: a tenth of total_steps.
  std::optional<std::uint64_t> decay_steps{};
  double minimum_lr = 0;
  double warmup_min_ratio = 0;             ///< WarmupCosineLR: of the optimizer's lr
  double cosine_min_ratio = 0.0001;        ///< WarmupCosineLR: of the optimizer's lr
  std::int64_t last_batch_iteration = -1;  ///< of DeepSpeed's kinds, before the run
  OneCycleOptions one_cycle{};
  RangeTestOptions range_test{};
};

/// Describes a monitor of DeepSpeed that writes files: monitors.hpp.
struct MonitorOptions {
  bool enabled = false;
  std::filesystem::path output_path;  ///< empty: a folder of the run
  std::string job_name = "DeepSpeedJobName";
  bool operator==(const MonitorOptions&) const = default;
};

/// Where FWD-BWD runs. Another device computes other bits.
enum class DeviceKind : std::uint8_t { host, cuda };
/// `automatic`: cuDNN where the shape suits it; `own`: our own kernels for every shape.
enum class AttentionChoice : std::uint8_t { automatic, own };
enum class UpdateMode : std::uint8_t { automatic, deferred, speculative, delayed };
enum class DecayScope : std::uint8_t { matrices, all };
enum class Checkpointing : std::uint8_t { automatic, recompute, keep, offload, nvme };
/// Returns whether saved activations wait off the device where they do not fit.
[[nodiscard]] constexpr bool offloads(Checkpointing checkpointing) {
  return checkpointing == Checkpointing::offload || checkpointing == Checkpointing::nvme;
}
enum class Residency : std::uint8_t { automatic, none, all };
enum class StateHome : std::uint8_t { automatic, device, host, nvme };
enum class SumsHome : std::uint8_t { automatic, device, host };

using plan::has_stale_weights;
using plan::PipelineSchedule;
using plan::SumOrder;
using plan::WorkOrder;

/// How the layers are cut over ranks.
struct PipelineOptions {
  std::uint32_t stages = 1;
  std::uint32_t chunks = 1;  ///< of a stage
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::vector<std::uint32_t> parts{};  ///< layers of each; empty: planned
  /// Steps after which stages with stale weights sum up losses and norms; 0: planned.
  std::uint32_t meet_every = 0;
  bool operator==(const PipelineOptions&) const = default;
};

/// How the matrices of every layer are cut over ranks (Shoeybi et al. 2019, Megatron-LM).
struct TensorOptions {
  std::uint32_t ranks = 1;  ///< of a tensor group
  bool sequence = false;    ///< they share out the tokens too, where matrices do not need all
  bool operator==(const TensorOptions&) const = default;
};

/// What a configuration leaves as "auto" for the model and the machine to say: automatic.hpp.
struct AutomaticOptions {
  bool compute = false;
  bool fp16 = false;          ///< ... which may be fp16
  bool state_format = false;  ///< not given, so it follows the compute type
  bool micro_batch = false;
  bool accumulation = false;
  bool rounds = false;        ///< searched by what a step takes, and with them the micro-batch
  std::uint64_t windows = 0;  ///< a rank is to have in a step, by train_batch_size; 0: not said
  std::uint32_t ranks = 1;    ///< share the tokens of a step
  bool operator==(const AutomaticOptions&) const = default;
};

struct TrainOptions {
  // The mathematics: recorded in RUN/config.json, fixed for resume.
  std::uint32_t micro_batch = 1;
  std::uint32_t gradient_accumulation_steps = 1;  ///< micro-batches a step
  std::uint32_t rounds = 1;                       ///< divides gradient_accumulation_steps
  SumOrder sum_order = SumOrder::fast;            ///< fixed: each micro-batch is a round
  std::uint32_t context = 0;                      ///< 0: the model's max_context
  double gradient_clipping = 1.0;                 ///< global norm; 0 switches it off
  DType compute = DType::fp32;
  std::optional<DeviceKind> device;  ///< absent: cuda where a GPU is usable, else the host
  bool deterministic = true;         ///< cuda: only algorithms whose sums have one order
  bool tf32 = false;  ///< cuda: fp32 products on tensor cores, with 10 bits of mantissa
  AttentionChoice attention = AttentionChoice::automatic;  ///< cuda: which kernels attend
  LossScaleOptions loss_scale;
  cpu_adam::AdamOptions adam;  ///< lr is optimizer.params.lr; the schedule gives each step's
  ScheduleOptions schedule;
  DecayScope decay = DecayScope::matrices;
  StateFormat state_format = StateFormat::fp32;
  data::Order order = data::Order::shuffled;
  std::uint64_t seed = 1234;
  std::uint64_t steps = 0;                   ///< 0: one epoch
  std::uint64_t tile_parameters = 2u << 20;  ///< a multiple of kLeafParameters
  std::uint64_t operator_tile = 0;  ///< parameters of a tile of matrices; 0: layers run whole
  /// With UpdateMode::delayed: the first step whose passes lack the update before it.
  std::uint64_t delayed_from = 41;

  // Placement and effort: free to change at every start; never changes a bit.
  UpdateMode update = UpdateMode::automatic;  ///< `delayed` is mathematics, and not free
  WorkOrder work_order = WorkOrder::layer_major;
  Checkpointing checkpointing = Checkpointing::automatic;
  Residency residency = Residency::automatic;
  StateHome state_home = StateHome::automatic;
  StateHome activations = StateHome::automatic;  ///< of the activations between blocks
  SumsHome gradient_sums = SumsHome::automatic;  ///< where gradients of rounds are added up
  std::optional<std::uint32_t> prefetch;         ///< blocks uploaded ahead; absent: the planner's
  /// Number of the GPU among those that CUDA shows. Each of several ranks of a machine has its own;
  /// no key of a configuration.
  int device_index = 0;
  /// Compute capability of that GPU, 90 for 9.0; 0: not known. Absent: `resolve` asks the GPU. No
  /// key of a configuration either.
  std::optional<std::uint32_t> device_generation;
  std::optional<Bytes> device_memory;       ///< absent: what the device has
  std::optional<Bytes> host_memory;         ///< absent: what cgroup and system leave
  std::vector<std::filesystem::path> nvme;  ///< empty: RUN/state
  nvme_swap::EngineKind io_engine = nvme_swap::EngineKind::automatic;
  std::uint32_t threads = 0;          ///< of the update; 0: physical cores
  std::uint32_t compute_threads = 0;  ///< of FWD-BWD; 0: physical cores
  std::optional<cpu_adam::Isa> isa;
  std::optional<double> host_link_gbps;
  std::optional<double> disk_gbps;
  /// Seconds that a rank may be late; absent: what SPILLWAY_TIMEOUT says, else 300.
  std::optional<std::uint32_t> timeout;

  // What is written when.
  std::uint64_t commit_every = 0;  ///< 0: planned
  /// False: no step is ever committed, and only state that lives on disk has slots there. For
  /// benchmarks, whose result nobody keeps; no key of a configuration.
  bool commits = true;
  std::uint64_t save_every = 0;  ///< kept checkpoints; 0: none
  std::uint32_t keep = 2;        ///< newest kept checkpoints; older ones are removed
  std::uint64_t eval_every = 0;  ///< 0: at the end only
  std::uint32_t zero_stage = 0;
  PipelineOptions pipeline;
  TensorOptions tensor;
  std::uint32_t secondary_ranks = 1;  ///< that share out a second copy of parameters; 1: none
  MonitorOptions tensorboard;
  MonitorOptions csv_monitor;

  // What "auto" is taken from; empty once it is resolved.
  AutomaticOptions automatic;
  std::uint64_t tokens_per_step = 0;  ///< for an automatic accumulation; 0: not given
};

struct ParsedConfig {
  TrainOptions options;
  std::vector<std::string> notes;  ///< one line each: what was ignored, or chosen by default
};

/// Reads a DeepSpeed-style configuration; `origin` names it in errors. Comments (`//`, `#`, `/*
/// */`) are accepted; an unknown key is refused with the nearest known one, a duplicate key too.
/// `ranks` relates train_batch_size to the micro-batch. Throws `Error{invalid_argument}`, or
/// `Error{not_supported}` for what DeepSpeed has and Spillway has not, naming the key, its value
/// and what is allowed. Does not `validate`: flags may still override.
[[nodiscard]] ParsedConfig parse_train_config(std::string_view text, std::string_view origin,
                                              std::uint32_t ranks = 1);
/// Returns the resolved options as the `config.json` of a run; `parse_train_config` reads it back
/// equal. `options` must be valid.
[[nodiscard]] std::string to_config_json(const TrainOptions& options);
/// Checks every value and what holds between them. Throws `Error{invalid_argument}`, or
/// `Error{not_supported}` for a value that this version does not implement, naming the key.
void validate(const TrainOptions& options);

/// Whether each micro-batch is a round, whatever `rounds` says.
[[nodiscard]] inline bool rounds_are_micro_batches(const TrainOptions& options) {
  return options.sum_order == SumOrder::fixed || options.pipeline.stages > 1;
}
/// Number of rounds of a step.
[[nodiscard]] inline std::uint32_t rounds_of(const TrainOptions& options) {
  return rounds_are_micro_batches(options) ? options.gradient_accumulation_steps : options.rounds;
}
/// Number of windows of tokens that one replica takes in a step.
[[nodiscard]] inline std::uint64_t windows_of_step(const TrainOptions& options) {
  return std::uint64_t{options.micro_batch} * options.gradient_accumulation_steps;
}

}  // namespace spillway::config
