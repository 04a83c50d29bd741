// Planner: from the options of a run to the plan of one of its ranks. `spillway train` and
// `spillway plan` both call plan_rank, so equal inputs give equal plans. Inputs may differ:
// - `plan` reads how much memory is free before there is a model, `train` once its model is made.
// - A resumed run keeps the choices that it recorded.
// - `train` measures disks and the network; for a described machine, `plan` takes rates from the
//   description.
// Control thread only.
#pragma once

#include <functional>
#include <string>

#include "runtime/engine/prepare/planned.hpp"
#include "runtime/engine/prepare/stage_layers.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::engine {

/// Receives a line that the user should know and that stops nothing.
using Note = std::function<void(const std::string&)>;

/// What a plan depends on beside options and model: this machine, or a described one.
class PlanningMachine {
 public:
  virtual ~PlanningMachine() = default;
  /// Returns the memory and disk that the rank may fill.
  [[nodiscard]] virtual plan::Budgets budgets(const config::TrainOptions& options,
                                              const plan::Workload& workload) = 0;
  /// Returns the rates of the machine for the work before it is cut into stages. `fitting`: a
  /// placement of the rank's part.
  [[nodiscard]] virtual plan::MachineProfile profile(const config::TrainOptions& options,
                                                     const plan::Workload& whole,
                                                     const plan::Budgets& budgets,
                                                     const plan::Placement& fitting) = 0;
};

/// Plans the work of one rank, whose stage has these `replicas`. `options` are resolved. All ranks
/// call it. Throws `Error{does_not_fit}` that names the tier, the bytes and what would make it fit.
[[nodiscard]] Planned plan_rank(const model::ModelConfig& config, config::TrainOptions options,
                                const plan::Replicas& replicas, StageLayers stage_layers,
                                PlanningMachine& machine, RankGroups& ranks, const Note& note);

}  // namespace spillway::engine
