// The parts of parse_train_config, one a section of the file.
#pragma once

#include "runtime/engine/detail/config_section.hpp"

namespace spillway::engine::detail {

/// fp16, bf16 and spillway.compute.
void read_precision(Section& root, Section& spillway, TrainOptions& options);
/// optimizer; sets the schedule's peak.
void read_optimizer(Section& root, TrainOptions& options);
/// scheduler; needs the optimizer's learning rate.
void read_scheduler(Section& root, TrainOptions& options);
/// zero_optimization and activation_checkpointing: where things live, as far as DeepSpeed can say
/// it.
void read_zero(Section& root, TrainOptions& options);
/// tensorboard and csv_monitor, and what becomes of wandb and comet.
void read_monitors(Section& root, TrainOptions& options);
/// The spillway section but for `compute`; overrides what read_zero found.
void read_spillway(ConfigContext& context, Section& spillway, TrainOptions& options);

}  // namespace spillway::engine::detail
