// The decision that ends a step: from the norm of its gradient, the update that the next plan
// applies, the loss scale that goes on, and whether training can. Pure.
#pragma once

#include "runtime/config/train_options.hpp"
#include "runtime/engine/step/op_actions.hpp"
#include "runtime/engine/step_result.hpp"
#include "runtime/engine/training_state.hpp"

namespace spillway::engine {

/// Returns the update of a step whose loss and norm are known: clipped, or none where a gradient
/// was not finite. Counts it in `state`, and tells in `result` what was decided.
[[nodiscard]] PendingUpdate decide_update(const config::TrainOptions& options, TrainingState& state,
                                          StepResult& result);

}  // namespace spillway::engine
