// From a model and training options to what the planner reads.
#pragma once

#include <vector>

#include "runtime/engine/train_options.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/plan/choose.hpp"

namespace spillway::engine {

[[nodiscard]] plan::Workload make_workload(const model::ModelConfig& config,
                                           const model::Transformer& transformer,
                                           const TrainOptions& options);

/// Per block: parameters from its start that weight decay applies to.
[[nodiscard]] std::vector<std::uint64_t> decayed_parameters(const model::ModelLayout& layout,
                                                            DecayScope scope);

[[nodiscard]] plan::PlacementRequest placement_request(const TrainOptions& options);

}  // namespace spillway::engine
