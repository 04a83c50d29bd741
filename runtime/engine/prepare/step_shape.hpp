// The search for the shape of a step. What a configuration leaves as "auto" of it is searched once,
// when the run begins, and recorded: other rounds and micro-batches are other mathematics. Control
// thread only.
#pragma once

#include <string>

#include "runtime/engine/prepare/planned.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// What shapes are priced with.
struct ShapeRequest {
  const model::ModelConfig& model;
  const config::TrainOptions& options;  ///< resolved; `automatic` says what is open
  const plan::Replicas& replicas;
  const plan::Budgets& budgets;
};

/// Whether the planner is to choose the shape. With stages or a fixed order of sums, each
/// micro-batch is a round, and there is nothing to choose.
[[nodiscard]] bool leaves_shape_open(const config::TrainOptions& options);

void take_shape(config::TrainOptions& options, const StepShape& shape);

/// Returns the fewest rounds that fit, with the options' own micro-batch; its own shape if none do.
[[nodiscard]] StepShape first_shape(const ShapeRequest& request);

/// Prices the shapes that divide the step's windows, with fewer windows a micro-batch than the
/// options have only where that is open too. Another shape than the first that fits is chosen where
/// its step is at least 2 % shorter: no prediction is more exact, and rounds round gradients.
[[nodiscard]] ChosenShape fastest_shape(const ShapeRequest& request,
                                        const plan::MachineProfile& profile);

/// Returns the choice in a line.
[[nodiscard]] std::string to_text(const ChosenShape& choice);

}  // namespace spillway::engine
