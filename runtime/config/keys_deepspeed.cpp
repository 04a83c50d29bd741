#include <algorithm>
#include <array>

#include "runtime/config/keys.hpp"

namespace spillway::config {
namespace {

constexpr std::string_view kZero = "zero_optimization";
constexpr std::string_view kOffloadOptimizer = "zero_optimization.offload_optimizer";
constexpr std::string_view kOffloadParam = "zero_optimization.offload_param";
constexpr std::string_view kCheckpointingSection = "activation_checkpointing";
constexpr std::string_view kTensor = "tensor_parallel";

constexpr std::string_view kReporting = "metrics.jsonl and the trace hold every step";
constexpr std::string_view kRanks = "it concerns traffic between ranks";
constexpr std::string_view kBuckets = "the plan sizes every buffer";
constexpr std::string_view kOverlap = "copies, update and FWD-BWD always overlap";
constexpr std::string_view kPinned = "staging memory is always pinned, at exact size";
constexpr std::string_view kAsync = "the I/O engine chooses it";
constexpr std::string_view kAlways = "it is always so";
constexpr std::string_view kPlanned = "the plan decides what to keep and what to recompute";
constexpr std::string_view kMegatron = "matrices and vocabulary are cut as Megatron-LM cuts them";
constexpr std::string_view kNoModel = "there is no foreign model or optimizer to adapt to";

using enum Answer;

constexpr std::string_view kNetwork =
    "Spillway sends nothing over a network; enable tensorboard, and upload its files "
    "(`wandb sync DIR` takes them)";
constexpr std::string_view kOtherMathematics =
    "changes the mathematics in a way that Spillway does not implement; switch it off";
constexpr std::string_view kRemoved =
    "is a feature that DeepSpeed 0.19.8 has removed and refuses; remove it";
constexpr std::string_view kUlysses =
    "is DeepSpeed-Ulysses, and spillway.sequence_parallel is Megatron-LM's; remove it";
constexpr std::string_view kExperts = "needs layers of experts, which no model here has; remove it";

constexpr std::array kForeign = std::to_array<ForeignKey>({
    {"", "steps_per_print", note, kReporting},
    {"", "wall_clock_breakdown", note, kReporting},
    {"", "memory_breakdown", note, kReporting},
    {"", "dump_state", note, kReporting},
    {"", "flops_profiler", note, kReporting,
     "enabled recompute_fwd_factor profile_step module_depth top_modules detailed "
     "output_file"},
    {"", "monitor_config", note, kReporting,
     "enabled tag csv_monitor.* tensorboard.* wandb.* comet.*"},
    {"", "comms_logger", note, kReporting, "enabled prof_all prof_ops verbose debug"},
    {"", "comms_config", note, kReporting, "verbose"},
    {"", "timers", note, kReporting, "throughput.enabled throughput.synchronized"},
    {"", "log_level", note, "--verbose takes its place"},
    {"", "prescale_gradients", note, kRanks},
    {"", "gradient_allreduce_op", note, kRanks},
    {"", "use_data_before_expert_parallelism", note, kRanks},
    {"", "gradient_predivide_factor", note, kRanks},
    {"", "communication_data_type", note, kRanks},
    {"", "seq_parallel_communication_data_type", note, kRanks},
    {"", "fp32_allreduce", note, kRanks},
    {"", "disable_allgather", note, kRanks},
    {"", "allgather_size", note, kRanks},
    {"", "data_types", note, "gradients accumulate in fp32",
     "grad_accum_dtype param_dtype buffer_dtype keep_in_fp32_modules"},
    {"", "aio", note, kAsync,
     "block_size queue_depth thread_count intra_op_parallelism single_submit "
     "overlap_events use_gds"},
    {"", "datastates_ckpt", note, "a commit is written behind the next step"},
    {"", "pipeline", note, "the planner cuts the layers and chooses what is recomputed",
     "partition seed_layers activation_checkpoint_interval pipe_partitioned grad_partitioned "
     "use_reentrant"},
    {"", "managed_gradient_accumulation", note, kAlways},
    {"", "disable_python_gc", note, "there is no Python"},
    {"", "vocabulary_size", note, "the model's config.json says it"},
    {"", "checkpoint", note, "checkpoints are always checksummed and complete",
     "tag_validation load_universal use_node_local_storage parallel_write.pipeline_stage "
     "checkpoint_serialization writer.*"},
    {"", "zero_allow_untested_optimizer", note, kNoModel},
    {"", "zero_force_ds_cpu_optimizer", note, kNoModel},
    {"", "compile", note, kNoModel,
     "deepcompile autoep_non_moe free_activation free_activation_threshold "
     "offload_activation offload_activation_pin_memory offload_opt_states double_buffer "
     "symmetric_memory debug_log offload_parameters sync_before_reduce sync_after_reduce "
     "sync_before_allgather sync_after_allgather keep_int_input_tensors "
     "keep_all_input_tensors passes enabled disable backend kwargs.*"},
    {"", "dataloader_drop_last", note, "windows are always whole"},
    {"", "autotuning", note, "the planner tunes every run",
     "enabled fast metric metric_path mp_size model_info.* model_info_path arg_mappings.* "
     "exps_dir results_dir overwrite start_profile_step end_profile_step tuner_type "
     "tuner_early_stopping tuner_num_trials min_train_batch_size max_train_batch_size "
     "min_train_micro_batch_size_per_gpu max_train_micro_batch_size_per_gpu "
     "num_tuning_micro_batch_sizes template.*"},
    {"", "cuda_visible_devices", note, "the variable CUDA_VISIBLE_DEVICES says it"},
    {"fp16", "auto_cast", note, "all activations are in the compute type"},
    {"fp16", "fused_mode", note, "the update is one fused pass"},
    {"bf16", "immediate_grad_update", note, "the plan decides when gradients are added"},
    {"bf16", "check_overflow", note, "a step with a non-finite gradient is always skipped"},
    {"bf16", "check_grad_overflow", note, "a step with a non-finite gradient is always skipped"},
    {"optimizer", "legacy_fusion", note, "the update is one fused pass"},
    {"optimizer.params", "torch_adam", note,
     "the update is one fused pass; where weight_decay is absent, torch's AdamW decays by 0.01, "
     "and this one does not"},
    {"optimizer.params", "fused", note, "the update is one fused pass"},
    {"optimizer.params", "foreach", note, "the update is one fused pass"},
    {"optimizer.params", "set_grad_none", note, kAlways},
    {kZero, "allgather_partitions", note, kRanks},
    {kZero, "allgather_bucket_size", note, kBuckets},
    {kZero, "reduce_scatter", note, kRanks},
    {kZero, "reduce_bucket_size", note, kBuckets},
    {kZero, "use_multi_rank_bucket_allreduce", note, kRanks},
    {kZero, "contiguous_gradients", note, kAlways},
    {kZero, "overlap_comm", note, kOverlap},
    {kZero, "compute_grad_norm", note, kAlways},
    {kZero, "allgather_sequential", note, kRanks},
    {kZero, "stage3_allgather_sequential", note, kRanks},
    {kZero, "parameter_alignment", note, "blocks are padded to whole leaves"},
    {kZero, "leaf_module", note, kNoModel, "classes names name_suffixes"},
    {kZero, "convert_grad_on_cpu", note, "gradients arrive on the host in the compute type"},
    {kZero, "load_from_fp32_weights", note, kAlways},
    {kZero, "elastic_checkpoint", note, "a checkpoint does not depend on the number of ranks"},
    {kZero, "sub_group_size", note, "tiles take its place: spillway.tile_parameters"},
    {kZero, "prefetch_bucket_size", note, "spillway.prefetch takes its place"},
    {kZero, "stage3_prefetch_bucket_size", note, "spillway.prefetch takes its place"},
    {kZero, "param_persistence_threshold", note, "spillway.residency takes its place"},
    {kZero, "stage3_param_persistence_threshold", note, "spillway.residency takes its place"},
    {kZero, "model_persistence_threshold", note, "spillway.residency takes its place"},
    {kZero, "stage3_model_persistence_threshold", note, "spillway.residency takes its place"},
    {kZero, "max_live_parameters", note, kBuckets},
    {kZero, "stage3_max_live_parameters", note, kBuckets},
    {kZero, "max_reuse_distance", note, kBuckets},
    {kZero, "stage3_max_reuse_distance", note, kBuckets},
    {kZero, "module_granularity_threshold", note, kBuckets},
    {kZero, "stage3_module_granularity_threshold", note, kBuckets},
    {kZero, "use_all_reduce_for_fetch_params", note, kRanks},
    {kZero, "stage3_use_all_reduce_for_fetch_params", note, kRanks},
    {kZero, "gather_16bit_weights_on_model_save", note, "`spillway export` writes whole models"},
    {kZero, "stage3_gather_16bit_weights_on_model_save", note,
     "`spillway export` writes whole models"},
    {kZero, "stage3_gather_fp16_weights_on_model_save", note,
     "`spillway export` writes whole models"},
    {kZero, "ignore_unused_parameters", note, "every parameter is used"},
    {kZero, "legacy_stage1", note, kRanks},
    {kZero, "round_robin_gradients", note, kRanks},
    {kZero, "memory_efficient_linear", note, kNoModel},
    {kZero, "pipeline_loading_checkpoint", note, kOverlap},
    {kZero, "override_module_apply", note, kNoModel},
    {kZero, "log_trace_cache_warnings", note, kReporting},
    {kZero, "enable_sanity_checks", note, kAlways},
    {kZero, "save_muon_momentum_buffer_in_memory", note, "it belongs to another optimizer"},
    {kZero, "cpu_offload_use_pin_memory", note, kPinned},
    {kOffloadOptimizer, "convert_grad_on_cpu", note,
     "gradients arrive on the host in the compute type"},
    {kOffloadOptimizer, "pin_memory", note, kPinned},
    {kOffloadOptimizer, "buffer_count", note, kBuckets},
    {kOffloadOptimizer, "pipeline", note, kOverlap},
    {kOffloadOptimizer, "pipeline_read", note, kOverlap},
    {kOffloadOptimizer, "pipeline_write", note, kOverlap},
    {kOffloadOptimizer, "fast_init", note, "state is never read before it is written"},
    {kOffloadOptimizer, "ratio", note, "the plan decides per block where the update runs"},
    {kOffloadOptimizer, "super_offload", note, kOverlap},
    {kOffloadOptimizer, "cpuadam_cores_perc", note, "--threads takes its place"},
    {kOffloadParam, "pin_memory", note, kPinned},
    {kOffloadParam, "buffer_count", note, kBuckets},
    {kOffloadParam, "buffer_size", note, kBuckets},
    {kOffloadParam, "max_in_cpu", note, "--host-memory takes its place"},
    {kCheckpointingSection, "partition_activations", note, kPlanned},
    {kCheckpointingSection, "contiguous_memory_optimization", note, kPlanned},
    {kCheckpointingSection, "number_checkpoints", note, kPlanned},
    {kCheckpointingSection, "synchronize_checkpoint_boundary", note, kPlanned},
    {kCheckpointingSection, "profile", note, kReporting},
    {"", "torch_autocast", refuse_when_on, kOtherMathematics,
     "enabled dtype lower_precision_safe_modules"},
    {"", "data_efficiency", refuse_when_on, kOtherMathematics,
     "enabled seed data_sampling.* data_routing.*"},
    {"", "weight_quantization", refuse_when_on, kOtherMathematics},
    {"", "hybrid_engine", refuse_when_on,
     "belongs to reinforcement learning with generation; switch it off",
     "enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters "
     "tp_gather_partition_size enable_cuda_graph"},
    {kTensor, "enabled", refuse_when_off, "does not switch autotp_size off; remove it"},
    {kTensor, "tp_size", refuse_when_on,
     "is the key of inference, and that of training is autotp_size; remove it"},
    {kTensor, "dtype", note, kMegatron},
    {kTensor, "tp_overlap_comm", note, kMegatron},
    {kTensor, "vocab_parallel_lm_head", note, kMegatron},
    {kTensor, "vocab_parallel_ce_backend", note, kMegatron},
    {kTensor, "tp", note, kMegatron},
    {kTensor, "tensor_parallel", note, kMegatron},
    {kTensor, "injection_policy_tuple", note, kMegatron},
    {kTensor, "partition_config", note, kMegatron},
    {kTensor, "preset_model", note, kMegatron},
    {kTensor, "keep_module_on_host", note, kMegatron},
    {kTensor, "kernel_inject", note, kMegatron},
    {kTensor, "replace_with_kernel_inject", note, kMegatron},
    {"", "sequence_parallel_size", refuse_when_on, kUlysses},
    {"", "expert_parallel", refuse_when_on, kExperts,
     "enabled autoep_size preset_model async_split_plan combine_impl comm_backend "
     "comm_max_tokens_per_rank comm_num_sm comm_qp_margin disable_triton_grouped_mm "
     "expert_activation expert_pattern expert_tensor_parallel_size expert_w1 expert_w2 "
     "expert_w3 gate_up_impl has_shared_experts load_balance_coeff moe_layer_pattern "
     "num_expert_groups num_experts_attr num_limited_groups route_norm route_scale "
     "routed_scaling_factor router_pattern row_weighting_impl score_apply score_func "
     "shared_experts_gate_pattern shared_experts_pattern top_k top_k_attr use_grouped_mm "
     "validate_folding_routing"},
    {"fp16", "fp16_master_weights_and_grads", refuse_when_on, kOtherMathematics},
    {"fp16", "fp16_master_weights_and_gradients", refuse_when_on, kOtherMathematics},
    {"bf16", "bf16_master_weights_and_grads", refuse_when_on, kOtherMathematics},
    {"bf16", "bf16_optimizer_states", refuse_when_on,
     "is spillway.state_format bf16, with fp32 masters; switch it off"},
    {"optimizer.params", "amsgrad", refuse_when_on, kOtherMathematics},
    {"optimizer.params", "maximize", refuse_when_on, kOtherMathematics},
    {kZero, "zenflow", refuse_when_on, kOtherMathematics,
     "topk_ratio select_strategy select_interval update_interval overlap_step offload "
     "auto_ratio full_warm_up_rounds pt_reserved_cores_perc steps_per_epoch"},
    {kZero, "zero_quantized_weights", refuse_when_on, kOtherMathematics},
    {kZero, "zero_quantized_nontrainable_weights", refuse_when_on, kOtherMathematics},
    {kZero, "zero_quantized_gradients", refuse_when_on, kOtherMathematics},
    {"optimizer.params", "nesterov", refuse_when_on,
     "is Nesterov's momentum, and Spillway's is Polyak's; switch it off"},
    {"optimizer.params", "fp32_optimizer_states", refuse_when_off,
     "is false; the state's format is spillway.state_format"},
    {"", "amp", refuse, kRemoved},
    {"", "nebula", refuse, kRemoved},
    {"", "compression_training", refuse, kRemoved},
    {"", "quantize_training", refuse, kRemoved},
    {"", "sparse_gradients", refuse, kRemoved},
    {"", "eigenvalue", refuse, kRemoved},
    {"", "sparse_attention", refuse, kRemoved},
    {"", "elasticity", refuse, kRemoved},
    {"", "graph_harvesting", refuse, kRemoved},
    {"", "curriculum_learning", refuse, kRemoved},
    {"", "progressive_layer_drop", refuse, kRemoved},
    {kZero, "mics_shard_size", refuse, kRemoved},
    {kZero, "mics_hierarchical_params_gather", refuse, kRemoved},
    {kZero, "zeropp_loco_param", refuse, kRemoved},
    {"optimizer.params", "freeze_step", refuse,
     "belongs to the 1-bit optimizers, which DeepSpeed 0.19.8 has removed; remove it"},
    {"optimizer.params", "max_grad_norm", refuse,
     "is not a parameter of the optimizer; write gradient_clipping at the top level"},
    {"optimizer.params", "adamw_mode", refuse,
     "is the optimizer's own word; write adam_w_mode, as DeepSpeed's configurations do"},
    {"", "wandb", note_when_on, kNetwork, "enabled group team project entity mode"},
    {"", "comet", note_when_on, kNetwork,
     "enabled samples_log_interval project workspace api_key experiment_name "
     "experiment_key online mode"},
});

}  // namespace

std::span<const ForeignKey> foreign_keys() { return kForeign; }

std::vector<std::string_view> inner_keys(const ForeignKey& key) {
  std::vector<std::string_view> keys;
  for (std::string_view rest = key.inner; !rest.empty();) {
    keys.push_back(rest.substr(0, rest.find(' ')));
    rest.remove_prefix(std::min(rest.size(), keys.back().size() + 1));
  }
  return keys;
}

}  // namespace spillway::config
