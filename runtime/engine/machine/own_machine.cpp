#include "runtime/engine/machine/own_machine.hpp"

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/engine/ranks/rank_agreement.hpp"

namespace spillway::engine {

plan::Budgets MachinePart::budgets(const config::TrainOptions& options,
                                   const plan::Workload& workload, RankGroups& ranks) const {
  plan::Budgets budgets = least(ranks, make_budgets(options, run, workload, share.sharers));
  if (swap_files == SwapFiles::there) budgets.nvme = plan::kUncounted;
  return budgets;
}

/// A plan that is shown reads how much memory is free before there is a model.
plan::Workload OwnMachine::fit_model(const model::ModelConfig& config,
                                     const config::TrainOptions& options,
                                     const plan::Replicas& replicas, Bytes score_gradients) {
  if (!parts_.run) return PlanningMachine::fit_model(config, options, replicas, score_gradients);
  ModelRuntime& model = parts_.run->model;
  if (score_gradients != model::cuda::kScoreGradients) {
    model = make_model_runtime(config, options, products_of(parts_.run->device), score_gradients);
  }
  return make_workload(config, *model.transformer, options, replicas);
}

CalibrationRequest OwnMachine::request_for(const config::TrainOptions& options,
                                           const plan::Workload& workload,
                                           const plan::Budgets& budgets,
                                           const ModelRuntime& model) const {
  CalibrationRequest request{.config = parts_.config,
                             .options = options,
                             .model = model,
                             .workload = workload,
                             .budgets = budgets,
                             .state_directories = std::nullopt};
  if (parts_.run) request.state_directories = parts_.run->state_directories;
  return request;
}

/// Ranks that share a disk measure it one after the other; what one of them has found out, the next
/// one reads in the machine profile.
void OwnMachine::tune_in_turn(const CalibrationRequest& request, const plan::Placement& fitting) {
  const MachineShare& share = parts_.part.share;
  for (std::uint32_t turn = 0; turn < share.turns; ++turn) {
    if (turn == share.turn) {
      if (turn > 0) parts_.known.refresh();
      tuning_ = engine::tune(request, fitting, parts_.known, parts_.note);
    }
    parts_.ranks.barrier();
  }
}

/// A rank's own rates are measured without the others. The first of the ranks that share a disk
/// measures it alone, and each takes its part of that rate; a disk slowed by `disk_gbps` has that
/// rate for each rank.
plan::MachineProfile OwnMachine::profile(const config::TrainOptions& options,
                                         const plan::Workload& whole, const plan::Budgets& budgets,
                                         const plan::Placement& fitting) {
  plan::Workload alone = whole;
  alone.replicas = {};
  ModelRuntime shown;
  if (!parts_.run) shown = make_model_runtime(parts_.config, options, parts_.known.products());
  CalibrationRequest request =
      request_for(options, alone, budgets, parts_.run ? parts_.run->model : shown);
  if (!parts_.run && fitting.uses_disk()) {
    request.state_directories = state_directories(options, parts_.part.run);
  }
  tune_in_turn(request, fitting);
  const MachineShare& share = parts_.part.share;
  if (share.turn > 0) request.state_directories.reset();
  return per_rank(calibrate(request, tuning_, parts_.note_load),
                  options.disk_gbps ? 1 : share.sharers.disks);
}

void OwnMachine::tune(const Planned& plan, nvme_swap::StoreOptions& store) const {
  SPILLWAY_ASSERT(parts_.run.has_value());
  tune_store(tuning_.drives, store);
  store.weights =
      disk_weights(request_for(plan.options, plan.workload, plan.budgets, parts_.run->model),
                   tuning_.drives, plan.placement);
}

}  // namespace spillway::engine
