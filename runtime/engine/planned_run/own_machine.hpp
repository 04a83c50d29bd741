// OwnMachine: the machine of a run, measured with the run's own operators, kernel and disks.
// Control thread only.
#pragma once

#include "runtime/engine/machine/calibrate.hpp"
#include "runtime/engine/planned_run.hpp"
#include "runtime/engine/prepare/planner.hpp"

namespace spillway::engine {

class OwnMachine final : public PlanningMachine {
 public:
  OwnMachine(const TrainRequest& request, TrainObserver& observer, PlannedRun& run)
      : request_(request), ranks_(run.ranks), observer_(observer), run_(run) {}

  [[nodiscard]] plan::Budgets budgets(const config::TrainOptions& options,
                                      const plan::Workload& workload) override;
  /// Makes the run's model anew where it is to have another bound than the usual one.
  [[nodiscard]] plan::Workload fit_model(const model::ModelConfig& config,
                                         const config::TrainOptions& options,
                                         const plan::Replicas& replicas,
                                         Bytes score_gradients) override;
  [[nodiscard]] plan::MachineProfile profile(const config::TrainOptions& options,
                                             const plan::Workload& whole,
                                             const plan::Budgets& budgets,
                                             const plan::Placement& fitting) override;
  /// Tunes the run by what the last profile was measured with.
  void tune_run();

 private:
  [[nodiscard]] CalibrationRequest request_for(const config::TrainOptions& options,
                                               const plan::Workload& workload,
                                               const plan::Budgets& budgets) const;
  void tune_in_turn(const CalibrationRequest& request, const plan::Placement& fitting);

  const TrainRequest& request_;
  RankGroups& ranks_;
  TrainObserver& observer_;
  PlannedRun& run_;
  Tuning tuning_;
};

}  // namespace spillway::engine
