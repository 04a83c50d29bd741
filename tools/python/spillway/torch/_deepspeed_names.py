"""Names of DeepSpeed 0.19.8 that Spillway has not, with the reason and what to do instead."""
from __future__ import annotations

import dis
import sys
from collections.abc import Mapping

from spillway.errors import NotSupportedError


class RefusedNameError(NotSupportedError, AttributeError):
    """A name of DeepSpeed that is not here; `hasattr` is then False."""


class _RefusedImportError(NotSupportedError, ImportError):
    """An import of such a name."""


def _by_name(groups: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for names, reason in groups.items() for name in names.split()}


#: Of the engine: names, and why they are refused.
ENGINE = _by_name({
    "set_train_micro_batch_size":
        "the data loader of initialize has its batch size: make the engine with another "
        "train_micro_batch_size_per_gpu; a checkpoint goes on with it",
    "allreduce_gradients allreduce_bucket allreduce_and_copy allreduce_no_retain "
    "buffered_allreduce_fallback sparse_allreduce_no_retain sparse_allreduce_bucket "
    "sparse_allreduce sparse_all_gather all_gather_scalar coalesce_grad_reduction "
    "enable_backward_allreduce gradient_average":
        "ranks exchange gradients in backward and step by themselves: leave the call out",
    "clip_fp32_gradients":
        "step clips: set gradient_clipping, or call optimizer.clip_grad_norm_ before engine.step()",
    "offload_states reload_states":
        "optimizer state is in host memory or on disk all the time: leave the call out",
    "load_moe_state_dict expert_data_parallel_group expert_parallel_group gate_modules "
    "all_to_all_group local_all_to_all_group moe_layers num_experts":
        "there are no expert layers: write the model as plain modules",
    "set_data_post_process_func set_custom_curriculum_learning_schedule data_efficiency_config "
    "data_sampling_config curriculum_learning_config random_ltd_config random_ltd_initialize "
    "random_ltd_scheduler":
        "data efficiency is not here: choose and order batches in the program's loop",
    "flops_profiler flops_profiler_recompute_fwd_factor flops_profiler_profile_step "
    "flops_profiler_module_depth flops_profiler_top_modules flops_profiler_detailed "
    "flops_profiler_output_file flops print_forward_breakdown get_wall_clock_timers timers "
    "engine_timers engine_timers_cache tput_timer fwd_duration monitor summary_events":
        "the engine times and logs nothing: use torch.profiler, and log in the program's loop",
    "autotuning_start_profile_step autotuning_end_profile_step autotuning_metric_path "
    "autotuning_model_info_path autotuning_metric autotuning_profile_model_info "
    "autotuning_model_info":
        "nothing is tuned: spillway.torch.plan says what fits",
    "zero_sub_group_size zero_reduce_bucket_size zero_multi_rank_bucket_allreduce "
    "zero_allgather_bucket_size zero_max_live_parameters zero_max_reuse_distance "
    "zero_prefetch_bucket_size zero_module_granularity_threshold "
    "zero_param_persistence_threshold zero_model_persistence_threshold zero_hpz_partition_size "
    "zero_parameter_alignment cpuadam_cores_perc swap_tensor_config aio_config zenflow_config "
    "zero_contiguous_gradients zero_overlap_comm zero_reduce_scatter zero_allgather_partitions "
    "zero_round_robin_gradients zero_legacy_stage1 zero_elastic_checkpoint "
    "zero_load_from_fp32_weights zero_ignore_unused_parameters zero_compute_grad_norm "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_log_trace_cache_warnings "
    "zero_allgather_sequential zero_gather_16bit_weights_on_model_save "
    "zero_save_muon_momentum_buffer_in_memory zero_partial_offload communication_data_type "
    "gradient_predivide_factor postscale_gradients update_interval":
        "it tunes ZeRO of DeepSpeed, and memory and exchanges are laid out otherwise here: read "
        "the configuration, which the program has",
    "fp16_master_weights_and_gradients bf16_master_weights_and_gradients bf16_optimizer_states "
    "torch_autocast_dtype torch_autocast_lower_precision_safe_modules dynamic_loss_scale_args "
    "torch_autocast_z0_gradscaler":
        "the precision of state is spillway.state_format of the configuration, and that of "
        "the model get_data_types()",
    "get_autosp_backend get_autotp_backend get_deepcompile_backend get_deepspeed_compile_backend "
    "get_compile_time register_compile_pass compile_zero_optimization_stage":
        "DeepCompile is not here: engine.compile() compiles the model with torch.compile",
    "get_tensor_parallel_rank get_sequence_parallel_group tensor_parallel_config "
    "seq_data_parallel_group seq_dp_world_size seq_parallel_group mesh_device "
    "is_first_weights_partition_group":
        "the engine's ranks train copies of the model: `spillway train` has tensor groups",
    "load_universal_checkpoint use_node_local_storage checkpoint_engine checkpoint_mp_rank "
    "save_non_zero_checkpoint save_zero_checkpoint loaded_checkpoint_dp_world_size "
    "loaded_checkpoint_mp_world_size checkpoint_serialization_enabled checkpoint_writer_enabled "
    "checkpoint_tag_validation_enabled checkpoint_tag_validation_fail":
        "checkpoints have a format of their own: save_checkpoint and load_checkpoint are the "
        "whole interface",
    "basic_optimizer optimizer_legacy_fusion get_optimizer_configuration get_type dist_backend "
    "dont_change_device first_dataloader_check flatten unflatten losses log_level "
    "module_forward_pre_hook module_forward_post_hook optimized_linear_base_weight_sharding "
    "optimized_linear_lora_enabled param_names scale_wrt_gas use_ds_comm warn_unscaled_loss "
    "collect_python_gc is_sanity_checks_enabled is_map_style_dataset is_iterable_style_dataset":
        "it is a part of DeepSpeed's engine that no script needs: leave it out"})

#: What the engine answers for features that are not here, which are off.
OFF = frozenset((
    "data_efficiency_enabled data_sampling_enabled curriculum_learning_enabled random_ltd_enabled "
    "wall_clock_breakdown flops_profiler_enabled memory_breakdown autotuning_enabled "
    "super_offload compile_autosp compile_autotp uses_parallelization_pass_only "
    "torch_autocast_enabled fp16_auto_cast zero_optimization_partition_weights "
    "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients "
    "is_deepcompile_enabled is_deepcompile_active dump_state dataloader_drop_last").split())

#: Of the module: names, and why they are refused.
MODULE = _by_name({
    "PipelineModule PipelineEngine pipe DualPipeVModule DualPipeVEngine":
        "`spillway train` has pipelines, and the engine has none: give initialize a plain model",
    "init_inference InferenceEngine DeepSpeedInferenceConfig default_inference_config inference "
    "DeepSpeedHybridEngine replace_transformer_layer module_inject model_implementations":
        "the engine trains: call the model itself for inference",
    "tp_model_init set_autotp_mode":
        "the engine's ranks train copies of the model: `spillway train` has tensor groups",
    "checkpointing": "use torch.utils.checkpoint, or activation_memory of offload_model",
    "ops": "give initialize a section optimizer, one of torch.optim, or OffloadedAdamW",
    "moe": "there are no expert layers: write the model as plain modules",
    "DeepSpeedTransformerLayer DeepSpeedTransformerConfig linear": "use torch.nn",
    "OnDevice": 'use torch.device as a context: with torch.device("meta")',
    "profiling autotuning monitor": "use torch.profiler, and log in the program's loop",
    "DeepSpeedConfig DeepSpeedConfigError load_ds_config runtime datastates io":
        "it is a part of DeepSpeed's own program: give the configuration to initialize",
    "utils": "import spillway.torch.zero_to_fp32, and leave the rest out"})


def refusal(name: str, of: str, reason: str) -> NotSupportedError:
    """Returns the error for a name of DeepSpeed, `of` what has it there, which a `__getattr__` that
    calls this raises. `from module import name` swallows an AttributeError, and with it the reason:
    there it is an ImportError."""
    caller = sys._getframe(2)
    code = caller.f_code
    imports = (code.co_name == "_handle_fromlist"  # of importlib, for a package
               or dis.opname[code.co_code[caller.f_lasti]] == "IMPORT_FROM")
    kind = _RefusedImportError if imports else RefusedNameError
    return kind(f"{of}{name} of DeepSpeed is not in Spillway: {reason}")
