// Whether a step with other rounds would be faster: the same tokens, read and updated alike, that
// pass through the model in fewer or more parts. Other rounds are other mathematics, as gradients
// are rounded once a round, so a plan only says what they would buy. Control thread only.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/engine/prepare/planned.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::cli {

struct FasterRounds {
  std::uint32_t rounds = 0;
  double step_seconds = 0;
};

/// Returns the power of two of rounds with which the step takes least by the rates of `planned`,
/// if that is a gain worth the change; nothing for a stage of a pipeline.
[[nodiscard]] std::optional<FasterRounds> faster_rounds(const engine::Planned& planned,
                                                        const model::ModelConfig& config);

}  // namespace spillway::cli
