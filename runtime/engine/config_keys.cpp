#include "runtime/engine/config_keys.hpp"

#include <algorithm>
#include <array>

namespace spillway::engine {
namespace {

constexpr std::array<Named<DType>, 3> kDTypes{{
    {"fp32", DType::fp32},
    {"bf16", DType::bf16},
    {"fp16", DType::fp16},
}};
constexpr std::array<Named<StateFormat>, 4> kStateFormats{{
    {"fp32", StateFormat::fp32},
    {"split", StateFormat::split},
    {"bf16", StateFormat::bf16},
    {"int8", StateFormat::int8},
}};
constexpr std::array<Named<data::Order>, 2> kOrders{{
    {"shuffled", data::Order::shuffled},
    {"sequential", data::Order::sequential},
}};
constexpr std::array<Named<cpu_adam::Isa>, 4> kIsas{{
    {"scalar", cpu_adam::Isa::scalar},
    {"portable", cpu_adam::Isa::portable},
    {"avx2", cpu_adam::Isa::avx2},
    {"avx512", cpu_adam::Isa::avx512},
}};
constexpr std::array<Named<nvme_swap::EngineKind>, 4> kEngines{{
    {"auto", nvme_swap::EngineKind::automatic},
    {"uring", nvme_swap::EngineKind::uring},
    {"aio", nvme_swap::EngineKind::aio},
    {"posix", nvme_swap::EngineKind::posix},
}};
constexpr std::array<Named<ScheduleKind>, 9> kSchedules{{
    {"Constant", ScheduleKind::constant},
    {"Linear", ScheduleKind::linear},
    {"Cosine", ScheduleKind::cosine},
    {"WSD", ScheduleKind::wsd},
    {"WarmupLR", ScheduleKind::warmup_lr},
    {"WarmupDecayLR", ScheduleKind::warmup_decay_lr},
    {"WarmupCosineLR", ScheduleKind::warmup_cosine_lr},
    {"OneCycle", ScheduleKind::one_cycle},
    {"LRRangeTest", ScheduleKind::lr_range_test},
}};
constexpr std::array<Named<UpdateMode>, 3> kUpdateModes{{
    {"auto", UpdateMode::automatic},
    {"deferred", UpdateMode::deferred},
    {"immediate", UpdateMode::immediate},
}};
constexpr std::array<Named<WorkOrder>, 2> kWorkOrders{{
    {"layer_major", WorkOrder::layer_major},
    {"micro_batch_major", WorkOrder::micro_batch_major},
}};
constexpr std::array<Named<DecayScope>, 2> kDecayScopes{{
    {"matrices", DecayScope::matrices},
    {"all", DecayScope::all},
}};
constexpr std::array<Named<Checkpointing>, 4> kCheckpointings{{
    {"auto", Checkpointing::automatic},
    {"recompute", Checkpointing::recompute},
    {"keep", Checkpointing::keep},
    {"offload", Checkpointing::offload},
}};
constexpr std::array<Named<DeviceKind>, 2> kDevices{{
    {"host", DeviceKind::host},
    {"cuda", DeviceKind::cuda},
}};
constexpr std::array<Named<Residency>, 3> kResidencies{{
    {"auto", Residency::automatic},
    {"none", Residency::none},
    {"all", Residency::all},
}};
constexpr std::array<Named<StateHome>, 4> kStateHomes{{
    {"auto", StateHome::automatic},
    {"device", StateHome::device},
    {"host", StateHome::host},
    {"nvme", StateHome::nvme},
}};
constexpr std::array<Named<SumsHome>, 3> kSumsHomes{{
    {"auto", SumsHome::automatic},
    {"device", SumsHome::device},
    {"host", SumsHome::host},
}};

constexpr std::string_view kZero = "zero_optimization";
constexpr std::string_view kOffloadOptimizer = "zero_optimization.offload_optimizer";
constexpr std::string_view kOffloadParam = "zero_optimization.offload_param";
constexpr std::string_view kCheckpointingSection = "activation_checkpointing";

constexpr std::string_view kReporting = "metrics.jsonl and the trace hold every step";
constexpr std::string_view kRanks = "it concerns traffic between ranks";
constexpr std::string_view kBuckets = "the plan sizes every buffer";
constexpr std::string_view kOverlap = "copies, update and FWD-BWD always overlap";
constexpr std::string_view kPinned = "staging memory is always pinned, at exact size";
constexpr std::string_view kAsync = "the I/O engine chooses it";
constexpr std::string_view kAlways = "it is always so";
constexpr std::string_view kPlanned = "the plan decides what to keep and what to recompute";
constexpr std::string_view kNoModel = "there is no foreign model or optimizer to adapt to";

constexpr std::array kUnneeded = std::to_array<UnneededKey>({
    {"", "steps_per_print", kReporting},
    {"", "wall_clock_breakdown", kReporting},
    {"", "memory_breakdown", kReporting},
    {"", "dump_state", kReporting},
    {"", "flops_profiler", kReporting},
    {"", "tensorboard", kReporting},
    {"", "wandb", kReporting},
    {"", "csv_monitor", kReporting},
    {"", "comet", kReporting},
    {"", "monitor_config", kReporting},
    {"", "comms_logger", kReporting},
    {"", "prescale_gradients", kRanks},
    {"", "gradient_predivide_factor", kRanks},
    {"", "sparse_gradients", kRanks},
    {"", "communication_data_type", kRanks},
    {"", "seq_parallel_communication_data_type", kRanks},
    {"", "fp32_allreduce", kRanks},
    {"", "disable_allgather", kRanks},
    {"", "allgather_size", kRanks},
    {"", "data_types", "gradients accumulate in fp32"},
    {"", "aio", kAsync},
    {"", "checkpoint", "checkpoints are always checksummed and complete"},
    {"", "zero_allow_untested_optimizer", kNoModel},
    {"", "zero_force_ds_cpu_optimizer", kNoModel},
    {"", "compile", kNoModel},
    {"", "dataloader_drop_last", "windows are always whole"},
    {"", "autotuning", "the planner tunes every run"},
    {"", "graph_harvesting", "the step is a static plan"},
    {"fp16", "auto_cast", "all activations are in the compute type"},
    {"bf16", "immediate_grad_update", "the plan decides when gradients are added"},
    {"bf16", "check_grad_overflow", "a step with a non-finite gradient is always skipped"},
    {"optimizer", "legacy_fusion", "the update is one fused pass"},
    {"optimizer.params", "torch_adam", "the update is one fused pass"},
    {"optimizer.params", "fused", "the update is one fused pass"},
    {"optimizer.params", "foreach", "the update is one fused pass"},
    {"optimizer.params", "set_grad_none", kAlways},
    {"optimizer.params", "freeze_step", "it belongs to 1-bit Adam"},
    {kZero, "allgather_partitions", kRanks},
    {kZero, "allgather_bucket_size", kBuckets},
    {kZero, "reduce_scatter", kRanks},
    {kZero, "reduce_bucket_size", kBuckets},
    {kZero, "use_multi_rank_bucket_allreduce", kRanks},
    {kZero, "contiguous_gradients", kAlways},
    {kZero, "overlap_comm", kOverlap},
    {kZero, "load_from_fp32_weights", kAlways},
    {kZero, "elastic_checkpoint", "a checkpoint does not depend on the number of ranks"},
    {kZero, "sub_group_size", "tiles take its place: spillway.tile_parameters"},
    {kZero, "prefetch_bucket_size", "spillway.prefetch takes its place"},
    {kZero, "stage3_prefetch_bucket_size", "spillway.prefetch takes its place"},
    {kZero, "param_persistence_threshold", "spillway.residency takes its place"},
    {kZero, "stage3_param_persistence_threshold", "spillway.residency takes its place"},
    {kZero, "model_persistence_threshold", "spillway.residency takes its place"},
    {kZero, "stage3_model_persistence_threshold", "spillway.residency takes its place"},
    {kZero, "max_live_parameters", kBuckets},
    {kZero, "stage3_max_live_parameters", kBuckets},
    {kZero, "max_reuse_distance", kBuckets},
    {kZero, "stage3_max_reuse_distance", kBuckets},
    {kZero, "module_granularity_threshold", kBuckets},
    {kZero, "stage3_module_granularity_threshold", kBuckets},
    {kZero, "use_all_reduce_for_fetch_params", kRanks},
    {kZero, "stage3_use_all_reduce_for_fetch_params", kRanks},
    {kZero, "gather_16bit_weights_on_model_save", "`spillway export` writes whole models"},
    {kZero, "stage3_gather_16bit_weights_on_model_save", "`spillway export` writes whole models"},
    {kZero, "stage3_gather_fp16_weights_on_model_save", "`spillway export` writes whole models"},
    {kZero, "ignore_unused_parameters", "every parameter is used"},
    {kZero, "legacy_stage1", kRanks},
    {kZero, "round_robin_gradients", kRanks},
    {kZero, "zero_hpz_partition_size", kRanks},
    {kZero, "mics_shard_size", kRanks},
    {kZero, "mics_hierarchical_params_gather", kRanks},
    {kZero, "memory_efficient_linear", kNoModel},
    {kZero, "pipeline_loading_checkpoint", kOverlap},
    {kZero, "override_module_apply", kNoModel},
    {kZero, "log_trace_cache_warnings", kReporting},
    {kZero, "enable_sanity_checks", kAlways},
    {kZero, "save_muon_momentum_buffer_in_memory", "it belongs to another optimizer"},
    {kZero, "cpu_offload_use_pin_memory", kPinned},
    {kOffloadOptimizer, "pin_memory", kPinned},
    {kOffloadOptimizer, "buffer_count", kBuckets},
    {kOffloadOptimizer, "pipeline", kOverlap},
    {kOffloadOptimizer, "pipeline_read", kOverlap},
    {kOffloadOptimizer, "pipeline_write", kOverlap},
    {kOffloadOptimizer, "fast_init", "state is never read before it is written"},
    {kOffloadOptimizer, "ratio", "the plan decides per block where the update runs"},
    {kOffloadOptimizer, "super_offload", kOverlap},
    {kOffloadOptimizer, "cpuadam_cores_perc", "--threads takes its place"},
    {kOffloadParam, "pin_memory", kPinned},
    {kOffloadParam, "buffer_count", kBuckets},
    {kOffloadParam, "buffer_size", kBuckets},
    {kOffloadParam, "max_in_cpu", "--host-memory takes its place"},
    {kCheckpointingSection, "partition_activations", kPlanned},
    {kCheckpointingSection, "contiguous_memory_optimization", kPlanned},
    {kCheckpointingSection, "number_checkpoints", kPlanned},
    {kCheckpointingSection, "synchronize_checkpoint_boundary", kPlanned},
    {kCheckpointingSection, "profile", kReporting},
});

constexpr std::array kOffOnly = std::to_array<OffOnlyKey>({
    {"", "amp"},
    {"", "torch_autocast"},
    {"", "sparse_attention"},
    {"", "curriculum_learning"},
    {"", "data_efficiency"},
    {"", "progressive_layer_drop"},
    {"", "eigenvalue"},
    {"", "quantize_training"},
    {"", "compression_training"},
    {"", "hybrid_engine"},
    {"", "elasticity"},
    {"", "nebula"},
    {"fp16", "fp16_master_weights_and_grads"},
    {"fp16", "fp16_master_weights_and_gradients"},
    {"bf16", "bf16_master_weights_and_grads"},
    {"bf16", "bf16_optimizer_states"},
    {"optimizer.params", "amsgrad"},
    {"optimizer.params", "maximize"},
    {kZero, "zero_quantized_weights"},
    {kZero, "zero_quantized_nontrainable_weights"},
    {kZero, "zero_quantized_gradients"},
    {kZero, "zeropp_loco_param"},
});

}  // namespace

template <>
std::span<const Named<DType>> names_of<DType>() {
  return kDTypes;
}
template <>
std::span<const Named<StateFormat>> names_of<StateFormat>() {
  return kStateFormats;
}
template <>
std::span<const Named<data::Order>> names_of<data::Order>() {
  return kOrders;
}
template <>
std::span<const Named<cpu_adam::Isa>> names_of<cpu_adam::Isa>() {
  return kIsas;
}
template <>
std::span<const Named<nvme_swap::EngineKind>> names_of<nvme_swap::EngineKind>() {
  return kEngines;
}
template <>
std::span<const Named<ScheduleKind>> names_of<ScheduleKind>() {
  return kSchedules;
}
template <>
std::span<const Named<UpdateMode>> names_of<UpdateMode>() {
  return kUpdateModes;
}
template <>
std::span<const Named<WorkOrder>> names_of<WorkOrder>() {
  return kWorkOrders;
}
template <>
std::span<const Named<DecayScope>> names_of<DecayScope>() {
  return kDecayScopes;
}
template <>
std::span<const Named<Checkpointing>> names_of<Checkpointing>() {
  return kCheckpointings;
}
template <>
std::span<const Named<Residency>> names_of<Residency>() {
  return kResidencies;
}
template <>
std::span<const Named<StateHome>> names_of<StateHome>() {
  return kStateHomes;
}
template <>
std::span<const Named<SumsHome>> names_of<SumsHome>() {
  return kSumsHomes;
}
template <>
std::span<const Named<DeviceKind>> names_of<DeviceKind>() {
  return kDevices;
}

std::span<const UnneededKey> unneeded_keys() { return kUnneeded; }
std::span<const OffOnlyKey> off_only_keys() { return kOffOnly; }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);  // the row of i - 2
  std::vector<std::size_t> last(b.size() + 1);    // the row of i - 1
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace spillway::engine
