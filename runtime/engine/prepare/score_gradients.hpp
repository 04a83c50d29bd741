// What deterministic attention on a GPU may take beyond the least: memory that a plan leaves.
#pragma once

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::engine {

/// Returns the bytes for gradients of scores: as much as the backward pass of attention can use of
/// the room that `placement` leaves on `device`; the usual bound where it leaves too little, or
/// where nothing needs more.
[[nodiscard]] Bytes spare_score_gradients(const model::ModelConfig& config,
                                          const config::TrainOptions& options,
                                          const plan::Workload& workload,
                                          const plan::Placement& placement, Bytes device);

}  // namespace spillway::engine
