#include "runtime/engine/machine/own_machine.hpp"

#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/ranks/rank_agreement.hpp"

namespace spillway::engine {

plan::Budgets MachinePart::budgets(const config::TrainOptions& options,
                                   const plan::Workload& workload, RankGroups& ranks) const {
  plan::Budgets budgets = least(ranks, make_budgets(options, run, workload, share.sharers));
  if (swap_files == SwapFiles::there) budgets.nvme = plan::kUncounted;
  return budgets;
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
plan::MachineProfile OwnMachine::measure(const config::TrainOptions& options,
                                         const plan::Workload& whole, const plan::Budgets& budgets,
                                         const plan::Placement& fitting, const ModelRuntime& model,
                                         const Directories& state) {
  plan::Workload alone = whole;
  alone.replicas = {};
  CalibrationRequest request{.config = parts_.config,
                             .options = options,
                             .model = model,
                             .workload = alone,
                             .budgets = budgets,
                             .state_directories = state};
  tune_in_turn(request, fitting);
  const MachineShare& share = parts_.part.share;
  if (share.turn > 0) request.state_directories.reset();
  return per_rank(calibrate(request, tuning_, parts_.note_load),
                  options.disk_gbps ? 1 : share.sharers.disks);
}

plan::MachineProfile ShownMachine::profile(const config::TrainOptions& options,
                                           const plan::Workload& whole,
                                           const plan::Budgets& budgets,
                                           const plan::Placement& fitting) {
  const ModelRuntime model = make_model_runtime(
      parts().config, options,
      {.products = parts().known.products(), .tensor_index = parts().ranks.place().tensor_index()});
  Directories state;
  if (fitting.uses_disk()) state = state_directories(options, parts().part.run);
  return measure(options, whole, budgets, fitting, model, state);
}

}  // namespace spillway::engine
