// A run of `train` from its request to its plan: claimed, checked, with a model and a placement,
// and nothing of it trained yet. Control thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/data/sampler.hpp"
#include "runtime/engine/machine/calibrate.hpp"
#include "runtime/engine/machine/machine_share.hpp"
#include "runtime/engine/machine/machine_tuning.hpp"
#include "runtime/engine/prepare/planned.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/run/claim.hpp"
#include "runtime/engine/run/train_request.hpp"
#include "runtime/engine/run/training_data.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/train_events.hpp"

namespace spillway::engine {

/// What a run trains, with what, and where.
struct PlannedRun {
  PlannedRun(const TrainRequest& request, RankGroups& ranks_of_job);

  /// Returns what the run's engine is made of.
  [[nodiscard]] EngineSetup engine_setup() const;
  [[nodiscard]] const model::ModelConfig& config() const { return run_config.model; }

  RankGroups& ranks;
  plan::Replicas replicas;               ///< of the stage; which of them this rank is
  MachineShare share;                    ///< of this rank; of the only one, none
  std::optional<ThreadBinding> binding;  ///< of the control thread and what it starts
  std::vector<ShownShare> shares;        ///< of all ranks
  RunClaim claim;
  std::optional<StepIndex> resume_at;  ///< absent: the run begins
  MachineTuning known;                 ///< what earlier runs measured of this machine
  std::optional<TrainingData> data;
  std::optional<data::Sampler> sampler;
  std::uint64_t steps = 0;  ///< the run ends with this one
  RunConfig run_config;
  nvme_swap::StoreOptions store_options;  ///< of the state
  std::size_t update_prefetch = 0;        ///< the updates' software prefetch distance
  ModelRuntime model;
  std::size_t measured_products = 0;  ///< matrix products whose algorithms are taken from `known`
  Planned plan;                       ///< its options come first, the rest last
};

/// Plans a run. Whatever can refuse the run has been checked when this returns, and none of the
/// run's own files is written yet. `request` and `observer` may be destroyed then; `ranks` has
/// joined its groups and outlives the run.
[[nodiscard]] std::unique_ptr<PlannedRun> plan_run(const TrainRequest& request, RankGroups& ranks,
                                                   TrainObserver& observer);

}  // namespace spillway::engine
