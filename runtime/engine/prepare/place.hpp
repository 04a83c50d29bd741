// From a workload and budgets to a placement that fits. Control thread only.
#pragma once

#include <functional>

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {
struct PlacementRequest;
}

namespace spillway::engine {

/// Returns what the options ask of a placement.
[[nodiscard]] plan::PlacementRequest placement_request(const config::TrainOptions& options);

/// The budgets that a machine gives a step with these options.
using BudgetsFor = std::function<plan::Budgets(const config::TrainOptions&, const plan::Workload&)>;

/// Returns a placement within the budgets. Throws `Error{does_not_fit}` that names the tier, the
/// bytes and what would make it fit, which was tried. `budgets_for` says what the machine could
/// give to other options; empty: whatever they ask for.
[[nodiscard]] plan::Placement place(const model::ModelConfig& config,
                                    const config::TrainOptions& options,
                                    const plan::Workload& workload, const plan::Budgets& budgets,
                                    const BudgetsFor& budgets_for = {});

}  // namespace spillway::engine
