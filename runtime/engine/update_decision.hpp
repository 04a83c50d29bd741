// The decision that ends a step: from the norm of its gradient, the update that the next plan
// applies, the loss scale that goes on, and whether training can. Pure.
#pragma once

#include "runtime/config/train_options.hpp"
#include "runtime/engine/step/op_actions.hpp"
#include "runtime/engine/step_result.hpp"
#include "runtime/engine/training_state.hpp"

namespace spillway::engine {

/// Returns what gradients of this norm are multiplied by, as torch.nn.utils.clip_grad_norm_:
/// limit / (norm + 1e-6), never above 1. A limit of 0 switches clipping off.
[[nodiscard]] double clip_factor(double norm, double limit);

/// Decides the update of a step whose loss and norm are known: clipped, or none where a gradient
/// was not finite. Counts it in `state`, and tells in `result` what was decided.
void decide_update(const config::TrainOptions& options, TrainingState& state, StepResult& result,
                   PendingUpdate& update);

}  // namespace spillway::engine
