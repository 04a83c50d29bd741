// From a workload and budgets to a placement that fits. Control thread only.
#pragma once

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

/// Returns a placement within the budgets. Throws `Error{does_not_fit}` that names the tier, the
/// bytes and what would make it fit.
[[nodiscard]] plan::Placement place(const model::ModelConfig& config,
                                    const config::TrainOptions& options,
                                    const plan::Workload& workload, const plan::Budgets& budgets);

}  // namespace spillway::engine
