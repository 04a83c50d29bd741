// Run: a run of `train` that is ready for its steps. It is opened, checked, given a model, planned
// and given a trainer, in this order, and owns what came of each. Control thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/affinity.hpp"
#include "runtime/data/sampler.hpp"
#include "runtime/engine/machine/machine_share.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/run/claim.hpp"
#include "runtime/engine/run/train_request.hpp"
#include "runtime/engine/run/training_data.hpp"
#include "runtime/engine/train_events.hpp"
#include "runtime/engine/training/trainer.hpp"

namespace spillway::engine {

/// A rank's part of its machine, taken: what it starts from then on runs on these cores.
struct TakenShare {
  MachineShare share;                      ///< of the only rank, none
  std::unique_ptr<ThreadBinding> binding;  ///< of the control thread and what it starts; or null
  std::vector<ShownShare> shown;           ///< of all ranks
};

struct Run {
  TakenShare share;
  TrainingData data;
  data::Sampler sampler;
  std::uint64_t steps;            ///< the run ends with this one
  RunConfig config;               ///< as config.json records it; the plan has what is trained
  std::size_t measured_products;  ///< matrix products with algorithms of the machine profile
  Trainer trainer;
};

/// Claims the folders of this rank, after those of rank 0 in which they lie.
[[nodiscard]] std::unique_ptr<RunClaim> claim_run(const TrainRequest& request, RankGroups& ranks);

/// Makes a claimed run ready. Whatever can refuse the run has been checked when this returns, its
/// store is open, and none of its own files is written yet. `request` and `observer` may be
/// destroyed then; `ranks` has joined its groups and outlives the run.
[[nodiscard]] Run prepare_run(const TrainRequest& request, RankGroups& ranks, RunClaim& claim,
                              TrainObserver& observer);

}  // namespace spillway::engine
