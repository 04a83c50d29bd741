// Measures the machine for the planner, with the run's own operators, kernel and disks. Takes well
// under a second for small models; one block's working set at a time, within the run's budgets.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/machine/machine_tuning.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

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

/// Measures what is worth it for a run of this size and not known yet. Calls `note` for a
/// measurement that takes seconds, and for one that lacks memory or disk. What was measured in less
/// than the usual memory or file is not kept for other runs.
[[nodiscard]] Tuning tune(const CalibrationRequest& request, const plan::Placement& placement,
                          MachineTuning& known,
                          const std::function<void(const std::string&)>& note);

/// Returns each directory's share of a new store's tiles, by the speed of its drive; empty, for
/// equal shares, where nothing was measured or a drive lacks the space for its share. `one_slot`:
/// of all tiles.
[[nodiscard]] std::vector<double> disk_weights(const DriveTunings& drives,
                                               std::span<const std::filesystem::path> directories,
                                               Bytes one_slot);

/// Measures the rates of the machine. Throws `Error{does_not_fit}` where the budgets or a drive
/// have no room for the least that can be measured. Calls `note` if other processes were busy
/// meanwhile.
[[nodiscard]] plan::MachineProfile calibrate(const CalibrationRequest& request,
                                             const Tuning& tuning,
                                             const std::function<void(const std::string&)>& note);

}  // namespace spillway::engine
