// Measures the machine for the planner, with the run's own operators, kernel and disks. Takes well
// under a second for small models; one block's working set at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/engine/planning.hpp"

namespace spillway::engine {

struct CalibrationRequest {
  const model::ModelConfig& config;
  const TrainOptions& options;  ///< resolved
  model::Transformer& transformer;
  const plan::Workload& workload;
  /// Measured when state will live on disk; absent: no disk rates.
  std::optional<std::vector<std::filesystem::path>> state_directories;
};

[[nodiscard]] plan::MachineProfile calibrate(const CalibrationRequest& request);

}  // namespace spillway::engine
