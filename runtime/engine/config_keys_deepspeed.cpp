#include <array>

#include "runtime/engine/config_keys.hpp"

namespace spillway::engine {
namespace {

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
    {"", "monitor_config", kReporting},
    {"", "comms_logger", kReporting},
    {"", "timers", kReporting},
    {"", "log_level", "--verbose takes its place"},
    {"", "prescale_gradients", kRanks},
    {"", "gradient_allreduce_op", kRanks},
    {"", "use_data_before_expert_parallelism", kRanks},
    {"", "gradient_predivide_factor", kRanks},
    {"", "sparse_gradients", kRanks},
    {"", "communication_data_type", kRanks},
    {"", "seq_parallel_communication_data_type", kRanks},
    {"", "fp32_allreduce", kRanks},
    {"", "disable_allgather", kRanks},
    {"", "allgather_size", kRanks},
    {"", "data_types", "gradients accumulate in fp32"},
    {"", "aio", kAsync},
    {"", "datastates_ckpt", "a commit is written behind the next step"},
    {"", "pipeline", "one device runs all layers"},
    {"", "managed_gradient_accumulation", kAlways},
    {"", "disable_python_gc", "there is no Python"},
    {"", "vocabulary_size", "the model's config.json says it"},
    {"", "checkpoint", "checkpoints are always checksummed and complete"},
    {"", "zero_allow_untested_optimizer", kNoModel},
    {"", "zero_force_ds_cpu_optimizer", kNoModel},
    {"", "compile", kNoModel},
    {"", "dataloader_drop_last", "windows are always whole"},
    {"", "autotuning", "the planner tunes every run"},
    {"", "graph_harvesting", "the step is a static plan"},
    {"fp16", "auto_cast", "all activations are in the compute type"},
    {"fp16", "fused_mode", "the update is one fused pass"},
    {"bf16", "immediate_grad_update", "the plan decides when gradients are added"},
    {"bf16", "check_overflow", "a step with a non-finite gradient is always skipped"},
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
    {kZero, "compute_grad_norm", kAlways},
    {kZero, "allgather_sequential", kRanks},
    {kZero, "stage3_allgather_sequential", kRanks},
    {kZero, "parameter_alignment", "blocks are padded to whole leaves"},
    {kZero, "leaf_module", kNoModel},
    {kZero, "convert_grad_on_cpu", "gradients arrive on the host in the compute type"},
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
    {kOffloadOptimizer, "convert_grad_on_cpu", "gradients arrive on the host in the compute type"},
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

constexpr std::string_view kOtherMathematics =
    "changes the mathematics in a way that Spillway does not implement; switch it off";
constexpr std::string_view kManyRanks =
    "needs several ranks, and Spillway trains on one; remove it";
constexpr std::string_view kExperts = "needs layers of experts, which no model here has; remove it";

constexpr std::array kOffOnly = std::to_array<OffOnlyKey>({
    {"", "amp", kOtherMathematics},
    {"", "torch_autocast", kOtherMathematics},
    {"", "sparse_attention", kOtherMathematics},
    {"", "curriculum_learning", kOtherMathematics},
    {"", "data_efficiency", kOtherMathematics},
    {"", "progressive_layer_drop", kOtherMathematics},
    {"", "eigenvalue", kOtherMathematics},
    {"", "quantize_training", kOtherMathematics},
    {"", "compression_training", kOtherMathematics},
    {"", "weight_quantization", kOtherMathematics},
    {"", "hybrid_engine", "belongs to reinforcement learning with generation; switch it off"},
    {"", "elasticity",
     "needs a number of ranks that changes, and Spillway trains on one; remove it"},
    {"", "tensor_parallel", kManyRanks},
    {"", "sequence_parallel_size", kManyRanks},
    {"", "expert_parallel", kExperts},
    {"", "nebula", "is a service of Azure; commits are written behind the step without it"},
    {"fp16", "fp16_master_weights_and_grads", kOtherMathematics},
    {"fp16", "fp16_master_weights_and_gradients", kOtherMathematics},
    {"bf16", "bf16_master_weights_and_grads", kOtherMathematics},
    {"bf16", "bf16_optimizer_states",
     "is spillway.state_format bf16, with fp32 masters; switch it off"},
    {"optimizer.params", "amsgrad", kOtherMathematics},
    {"optimizer.params", "maximize", kOtherMathematics},
    {kZero, "zenflow", kOtherMathematics},
    {kZero, "zero_quantized_weights", kOtherMathematics},
    {kZero, "zero_quantized_nontrainable_weights", kOtherMathematics},
    {kZero, "zero_quantized_gradients", kOtherMathematics},
    {kZero, "zeropp_loco_param", kOtherMathematics},
});

}  // namespace

std::span<const UnneededKey> unneeded_keys() { return kUnneeded; }
std::span<const OffOnlyKey> off_only_keys() { return kOffOnly; }

}  // namespace spillway::engine
