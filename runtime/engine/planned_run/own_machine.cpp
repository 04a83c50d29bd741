#include "runtime/engine/planned_run/own_machine.hpp"

#include <string>

#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/engine/ranks/rank_agreement.hpp"

namespace spillway::engine {

/// Every rank plans with the least that one of them has. The swap files of a resumed run are there
/// already.
plan::Budgets OwnMachine::budgets(const config::TrainOptions& options,
                                  const plan::Workload& workload) {
  plan::Budgets budgets =
      least(ranks_, make_budgets(options, request_.run, workload, run_.share.sharers));
  if (run_.claim.resumes()) budgets.nvme = plan::kUncounted;
  return budgets;
}

plan::Workload OwnMachine::fit_model(const model::ModelConfig& config,
                                     const config::TrainOptions& options,
                                     const plan::Replicas& replicas, Bytes score_gradients) {
  if (score_gradients != model::cuda::kScoreGradients) {
    run_.model =
        make_model_runtime(config, options, products_of(run_.run_config.device), score_gradients);
  }
  return make_workload(config, *run_.model.transformer, options, replicas);
}

CalibrationRequest OwnMachine::request_for(const config::TrainOptions& options,
                                           const plan::Workload& workload,
                                           const plan::Budgets& budgets) const {
  return {.config = run_.config(),
          .options = options,
          .model = run_.model,
          .workload = workload,
          .budgets = budgets,
          .state_directories = run_.store_options.directories};
}

/// Ranks that share a disk measure it one after the other; what one of them has found out, the next
/// one reads in the machine profile.
void OwnMachine::tune_in_turn(const CalibrationRequest& request, const plan::Placement& fitting) {
  for (std::uint32_t turn = 0; turn < run_.share.turns; ++turn) {
    if (turn == run_.share.turn) {
      if (turn > 0) run_.known.refresh();
      tuning_ = tune(request, fitting, run_.known,
                     [this](const std::string& text) { observer_.noted(text); });
    }
    ranks_.barrier();
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
  CalibrationRequest request = request_for(options, alone, budgets);
  tune_in_turn(request, fitting);
  if (run_.share.turn > 0) request.state_directories.reset();
  const auto note = [this](const std::string& text) {
    // Ranks sharing cores measure simultaneously, so do not report each other as foreign load.
    if (ranks_.alone() || run_.binding->holds()) observer_.noted(text);
  };
  return per_rank(calibrate(request, tuning_, note),
                  options.disk_gbps ? 1 : run_.share.sharers.disks);
}

void OwnMachine::tune_run() {
  const Planned& plan = run_.plan;
  run_.update_prefetch = tuning_.update_prefetch;
  tune_store(tuning_.drives, run_.store_options);
  run_.store_options.weights = disk_weights(request_for(plan.options, plan.workload, plan.budgets),
                                            tuning_.drives, plan.placement);
}

}  // namespace spillway::engine
