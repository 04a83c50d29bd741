// How full the memory of each tier is over a step: what is taken for the whole run, and of that
// what holds something that an op still needs. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/engine/prepare/planned.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::cli {

/// Returns for each tier its name, `budget` (null where nothing limits it), `taken` and `lines`:
/// for each line of the memory table its label, what it takes, and the most that is in use in each
/// of equally long parts of the step.
[[nodiscard]] nlohmann::ordered_json memory_use(const engine::Planned& planned,
                                                const plan::StepPlan& step,
                                                const plan::Prediction& prediction);

}  // namespace spillway::cli
