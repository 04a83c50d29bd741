// A run of `train` from its request to its plan: claimed, checked, with a model and a placement,
// and nothing of it trained yet. Control thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/affinity.hpp"
#include "runtime/data/sampler.hpp"
#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/machine/machine_share.hpp"
#include "runtime/engine/prepare/planned.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/run/claim.hpp"
#include "runtime/engine/run/train_request.hpp"
#include "runtime/engine/run/training_data.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/train_events.hpp"

namespace spillway::engine {

/// A rank's part of its machine, taken: what it starts from then on runs on these cores.
struct TakenShare {
  MachineShare share;                      ///< of the only rank, none
  std::unique_ptr<ThreadBinding> binding;  ///< of the control thread and what it starts; or null
  std::vector<ShownShare> shown;           ///< of all ranks
};

/// A claimed run that is checked, with its data.
struct OpenedRun {
  std::optional<StepIndex> resume_at;  ///< absent: the run begins
  plan::Replicas replicas;             ///< of the stage; which of them this rank is
  TakenShare share;
  TrainingData data;
  data::Sampler sampler;
  std::uint64_t steps;                ///< the run ends with this one
  std::size_t measured_products = 0;  ///< matrix products with algorithms of the machine profile
  RunConfig config;                   ///< as config.json records it; the plan has what is trained
};

/// A run with all that training needs: what surrounds its steps, and what its trainer is made
/// of.
struct PlannedRun {
  OpenedRun opened;
  EngineSetup setup;
  ModelRuntime model;
};

/// Claims the folders of this rank, after those of rank 0 in which they lie.
[[nodiscard]] std::unique_ptr<RunClaim> claim_run(const TrainRequest& request, RankGroups& ranks);

/// Plans a run. Whatever can refuse the run has been checked when this returns, and none of the
/// run's own files is written yet. `request` and `observer` may be destroyed then; `ranks` has
/// joined its groups and outlives the run.
[[nodiscard]] PlannedRun plan_run(const TrainRequest& request, RankGroups& ranks, RunClaim& claim,
                                  TrainObserver& observer);

}  // namespace spillway::engine
