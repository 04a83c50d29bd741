// The rotation of a model's position embedding. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/model_config.hpp"

namespace spillway::model {

/// Returns [head_dim / 2] fp32, with linear or Llama-3 scaling applied, rounded where HF rounds.
[[nodiscard]] std::vector<float> rope_inverse_frequencies(const ModelConfig& config);

/// Returns [sequence, 2, head_dim / 2] fp32: of every position the cosines, then the sines, of its
/// angles position * frequency. `frequencies` has [head_dim / 2].
[[nodiscard]] std::vector<float> rope_angles(std::span<const float> frequencies,
                                             std::uint32_t sequence);

}  // namespace spillway::model
