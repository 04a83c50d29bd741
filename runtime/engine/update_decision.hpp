// The decision that ends a step: from the norm of its gradient, the update that the next plan
// applies, the loss scale that goes on, and whether training can. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/config/train_options.hpp"
#include "runtime/engine/step/op_actions.hpp"
#include "runtime/engine/training_state.hpp"

namespace spillway::engine {

/// What one step did. `loss` is the mean over the step's targets before the update.
struct StepResult {
  std::uint64_t step = 0;  ///< from 1
  double loss = 0;
  double grad_norm = 0;      ///< unscaled, before clipping
  double lr = 0;             ///< of this step's update; it is applied unless `skipped`
  double scale = 1;          ///< loss scale of this step
  std::uint64_t tokens = 0;  ///< targets
  double seconds = 0;
  bool skipped = false;  ///< a gradient was not finite: state unchanged
  /// Why training cannot go on after this step; empty if it can.
  std::string diverged{};
};

/// Returns the update of a step whose loss and norm are known: clipped, or none where a gradient
/// was not finite. Counts it in `state`, and tells in `result` what was decided.
[[nodiscard]] PendingUpdate decide_update(const config::TrainOptions& options, TrainingState& state,
                                          StepResult& result);

}  // namespace spillway::engine
