// Measures the machine for the planner, with the run's own operators, kernel and disks. Takes well
// under a second for small models; one block's working set at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/machine_tuning.hpp"
#include "runtime/engine/planning.hpp"

namespace spillway::engine {

struct CalibrationRequest {
  const model::ModelConfig& config;
  const TrainOptions& options;  ///< resolved
  const ModelRuntime& model;
  const plan::Workload& workload;
  /// Measured when state will live on disk; absent: no disk rates.
  std::optional<std::vector<std::filesystem::path>> state_directories;
};

/// What suits the run on this machine; changes no bit of it.
struct Tuning {
  std::size_t update_prefetch = 0;
  DriveTunings drives;  ///< of the state directories, in order; none: the store's own defaults
  /// Each directory's share of a new store's tiles; none: all the same.
  std::vector<double> weights;
};

/// Measures what is worth it for a run of this size and not known yet; `note` is told of what takes
/// seconds.
[[nodiscard]] Tuning tune(const CalibrationRequest& request, const plan::Placement& placement,
                          MachineTuning& known,
                          const std::function<void(const std::string&)>& note);

/// Sets the directories' shares for the placement that is chosen; none where one lacks the space.
void share_disks(const CalibrationRequest& request, const plan::Placement& placement,
                 Tuning& tuning);

[[nodiscard]] plan::MachineProfile calibrate(const CalibrationRequest& request,
                                             const Tuning& tuning = {});

}  // namespace spillway::engine
