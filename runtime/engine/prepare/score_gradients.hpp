// What deterministic attention on a GPU may take beyond the least: memory that a plan leaves.
#pragma once

#include "runtime/base/units.hpp"
#include "runtime/engine/prepare/planned.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::engine {

/// Returns the bytes for gradients of scores: as much as the backward pass of attention can use of
/// the room that the plan leaves on the device; the usual bound where it leaves too little, or
/// where nothing needs more.
[[nodiscard]] Bytes spare_score_gradients(const model::ModelConfig& config, const Planned& planned);

}  // namespace spillway::engine
