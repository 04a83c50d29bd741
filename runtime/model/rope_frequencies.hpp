// The rotation frequencies of a model's position embedding. Pure.
#pragma once

#include <vector>

#include "runtime/model/model_config.hpp"

namespace spillway::model {

/// [head_dim / 2] fp32, with linear or Llama-3 scaling applied, rounded where HF rounds.
[[nodiscard]] std::vector<float> rope_inverse_frequencies(const ModelConfig& config);

}  // namespace spillway::model
