// The search for the shape of a step. What a configuration leaves as "auto" of it is searched once,
// when the run begins, and recorded: other rounds and micro-batches are other mathematics. Control
// thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/engine/prepare/automatic.hpp"
#include "runtime/engine/prepare/planned.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/search/fastest.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Ratio of step times from which on another shape is worth the change: no prediction is more
/// exact.
inline constexpr double kWorthChanging = 1.02;

/// What shapes are priced with.
struct ShapeRequest {
  const model::ModelConfig& model;
  const config::TrainOptions& options;  ///< resolved; `automatic` says what is open
  const plan::Replicas& replicas;
  const plan::Budgets& budgets;
};

/// Whether the planner is to choose the shape, and has a choice: with stages or a fixed order of
/// sums, each micro-batch is a round.
[[nodiscard]] bool leaves_shape_open(const config::TrainOptions& options);

void take_shape(config::TrainOptions& options, const StepShape& shape);

/// Gives `options` the fewest rounds that fit, or leaves them as they are where none do. Returns
/// the budgets for them: where device and host share one memory, those depend on the step.
[[nodiscard]] plan::Budgets take_first_rounds(config::TrainOptions& options,
                                              const model::ModelConfig& model,
                                              const plan::Replicas& replicas,
                                              const BudgetsFor& budgets);

/// Whether a step of so many rounds has more passes than are simulated for a comparison.
[[nodiscard]] bool takes_long(const model::ModelConfig& model, std::uint32_t rounds);

/// Returns the seconds that a step of this shape takes, simulated; nothing where it does not fit.
[[nodiscard]] std::optional<double> price_shape(
    const ShapeRequest& request, const plan::MachineProfile& profile, const StepShape& shape,
    plan::SearchEffort effort = plan::SearchEffort::whole);

/// A choice, and its step if that was searched whole: not where there was nothing to compare.
struct FoundShape {
  ChosenShape choice;
  std::optional<plan::PlannedStep> step{};
};

/// Prices the shapes that divide the step's windows, with fewer windows a micro-batch than the
/// options have only where that is open too. Another shape than the first that fits is chosen where
/// its step is shorter by kWorthChanging, as each round rounds gradients.
[[nodiscard]] FoundShape fastest_shape(const ShapeRequest& request,
                                       const plan::MachineProfile& profile);

/// Returns the choice in a line.
[[nodiscard]] std::string to_text(const ChosenShape& choice);

}  // namespace spillway::engine
