// From a model and training options to what the planner reads.
#pragma once

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::model {
class Transformer;
}
namespace spillway::plan {
struct DecoderShape;
}

namespace spillway::engine {

/// Returns what the planner reads of the model. It needs no device: a plan may be for one that this
/// machine lacks.
[[nodiscard]] plan::Workload make_workload(const model::ModelConfig& config,
                                           const config::TrainOptions& options,
                                           const plan::Replicas& replicas = {});

/// The same of a model that is there.
[[nodiscard]] plan::Workload make_workload(const model::ModelConfig& config,
                                           const model::Transformer& transformer,
                                           const config::TrainOptions& options,
                                           const plan::Replicas& replicas = {});

/// Returns what the model's FLOPs depend on, with windows of `context` tokens.
[[nodiscard]] plan::DecoderShape decoder_shape(const model::ModelConfig& config,
                                               std::uint32_t context);

/// Returns the largest gradient_accumulation_steps with which a step of the model is planned.
[[nodiscard]] std::uint64_t most_micro_batches(const model::ModelConfig& config);

}  // namespace spillway::engine
