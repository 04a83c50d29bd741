// From a model and training options to what the planner reads.
#pragma once

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/plan/predict/flops.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine {

[[nodiscard]] plan::Workload make_workload(const model::ModelConfig& config,
                                           const model::Transformer& transformer,
                                           const config::TrainOptions& options,
                                           const plan::Ranks& ranks = {});

/// Returns what the model's FLOPs depend on, with windows of `context` tokens.
[[nodiscard]] plan::DecoderShape decoder_shape(const model::ModelConfig& config,
                                               std::uint32_t context);

[[nodiscard]] plan::PlacementRequest placement_request(const config::TrainOptions& options);

}  // namespace spillway::engine
