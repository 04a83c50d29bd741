// The decision that ends a step: from the norm of its gradient, the update that the next plan
// applies, the loss scale that goes on, and whether training can. Stages of a pipeline that stays
// full may decide before they know the norm of all. Pure.
#pragma once

#include "runtime/config/train_options.hpp"
#include "runtime/engine/state/training_state.hpp"
#include "runtime/engine/step/step_result.hpp"
#include "runtime/engine/step/update_setup.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Returns what gradients of this norm are multiplied by, as torch.nn.utils.clip_grad_norm_:
/// limit / (norm + 1e-6), never above 1. A limit of 0 switches clipping off.
[[nodiscard]] double clip_factor(double norm, double limit);

/// Decides the update of a step whose loss and norm are known: clipped, or none where a gradient
/// was not finite. Counts it in `state`, and records the decision in `result`.
void decide_update(const config::TrainOptions& options, TrainingState& state, StepResult& result,
                   PendingUpdate& update);

/// Fills in the update that `decide_update` makes behind `state` of gradients with this loss scale,
/// if they are finite and not clipped.
void expect_update(const config::TrainOptions& options, TrainingState state, double scale,
                   PendingUpdate& update);

/// Number of steps whose losses and norms the stages of a pipeline bring together at once: one,
/// unless the pipeline stays full and the update needs no norm. Each stage then waits for one
/// round's passes backward of the stages behind it. Unless the options set the number, it is chosen
/// so that this takes at most 1 % of the time if backward takes twice as long as forward.
[[nodiscard]] std::uint32_t steps_of_sums(const config::TrainOptions& options,
                                          const plan::Workload& workload);

/// Decides the update of a step of which this stage knows its `own_squares` of the gradient alone:
/// none where their sum is not finite. The step is counted as one that updates.
void decide_early(const config::TrainOptions& options, TrainingState& state, StepResult& result,
                  double own_squares, PendingUpdate& update);
/// Records that step as skipped if its norm, once known, is not finite.
void judge_late(const config::TrainOptions& options, TrainingState& state, StepResult& result);

}  // namespace spillway::engine
