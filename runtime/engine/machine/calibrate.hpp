// Measures the machine for the planner, with the run's own operators, kernel and disks. Takes well
// under a second for small models; one block's working set at a time, within the run's budgets.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/machine/machine_tuning.hpp"
#include "runtime/engine/prepare/planning.hpp"

namespace spillway::engine {

struct CalibrationRequest {
  const model::ModelConfig& config;
  const config::TrainOptions& options;  ///< resolved
  const ModelRuntime& model;
  const plan::Workload& workload;
  const plan::Budgets& budgets;  ///< of memory; how much a drive has free is looked at here
  /// Directories whose drives are measured; absent: no disk rates.
  std::optional<std::vector<std::filesystem::path>> state_directories;
};

/// What suits the run on this machine; it changes no bit of the run.
struct Tuning {
  std::size_t update_prefetch = 0;
  DriveTunings drives;  ///< of the state directories, in order; none: the store's own defaults
};

/// Measures what is worth it for a run of this size and not known yet; `note` is told of what takes
/// seconds, and of what there is too little memory or disk to measure. What was measured in less
/// than the usual memory or file is not kept for other runs.
[[nodiscard]] Tuning tune(const CalibrationRequest& request, const plan::Placement& placement,
                          MachineTuning& known,
                          const std::function<void(const std::string&)>& note);

/// Each state directory's share of a new store's tiles, by what its drive does; none, which is all
/// the same, where nothing was measured or one lacks the space for its own.
[[nodiscard]] std::vector<double> disk_weights(const CalibrationRequest& request,
                                               const DriveTunings& drives,
                                               const plan::Placement& placement);

/// Throws `Error{does_not_fit}` where the budgets or a drive have no room for the least that can be
/// measured. `note` is told if other processes were busy meanwhile.
[[nodiscard]] plan::MachineProfile calibrate(const CalibrationRequest& request,
                                             const Tuning& tuning,
                                             const std::function<void(const std::string&)>& note);

}  // namespace spillway::engine
