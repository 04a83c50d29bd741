// Planned: what a rank does and with what, as the planner has decided it: all that an engine needs
// to know of a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/ranks.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Into how many rounds, micro-batches and windows a step's tokens are cut.
struct StepShape {
  std::uint32_t rounds = 1;
  std::uint32_t micro_batch = 1;   ///< windows
  std::uint32_t accumulation = 1;  ///< micro-batches of a step
  bool operator==(const StepShape&) const = default;
};

struct PricedShape {
  StepShape shape;
  double step_seconds = 0;  ///< simulated
};

/// What "auto" became, and what would take least of all others that were priced.
struct ChosenShape {
  PricedShape chosen;
  std::optional<PricedShape> next{};
};

/// An engine that nobody has planned for a machine, such as one that measures it, has no rates and
/// no prediction; gcc refuses an initializer that leaves out any other member.
struct Planned {
  config::TrainOptions options;  ///< resolved, with the layers of the stages
  plan::GridPlace place{};       ///< of the rank
  plan::Workload workload;
  plan::Budgets budgets;
  plan::MachineProfile profile{};
  plan::Placement placement;
  /// Its step is that of the job: of the stage that waits least for the others.
  plan::Prediction prediction{};
  std::uint64_t commit_every = 0;  ///< steps, as the options have it or as planned; 0: never
  /// Bound of the gradients of scores with which the model is made (spare_score_gradients); absent:
  /// the usual one.
  std::optional<Bytes> score_gradients{};
  std::optional<ChosenShape> shape{};  ///< where the options left it open

  /// Lists all bytes that the placement takes.
  [[nodiscard]] std::vector<plan::MemoryItem> memory() const {
    return plan::memory_items(workload, placement);
  }
  [[nodiscard]] config::DeviceKind device() const {
    return options.device.value_or(config::DeviceKind::host);
  }
};

}  // namespace spillway::engine
