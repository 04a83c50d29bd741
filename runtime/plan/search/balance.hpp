// Balance: assigns layers to the stages of a pipeline, by the stages' simulated times and their
// memory. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/pipeline/schedule.hpp"
#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// What the stages of a pipeline are balanced for.
struct BalanceRequest {
  const Workload& model;  ///< of one rank that has no stage
  const Pipeline& pipeline;
  const Budgets& budgets;  ///< of each stage
  PlacementRequest placement{};
  const MachineProfile* profile = nullptr;  ///< null: not measured yet
};

struct BalancedLayers {
  std::vector<std::uint32_t> layers;  ///< of each part, as `Pipeline::layers`
  double seconds = 0;                 ///< of a step, simulated; 0 without a profile
  double by_flops = 0;  ///< the same with layers by FLOPs alone; 0 if these do not fit
};

/// Returns layers with which the stages fit the budgets, or miss them by the least found. Without a
/// profile they are the nearest to those by FLOPs (`cut_layers`). With one they are those with
/// which the stages are busy most evenly: while that helps, a layer leaves the stage whose busiest
/// lane is busy longest. Those by FLOPs stay unless the simulated step is a hundredth shorter.
[[nodiscard]] BalancedLayers balance_layers(const BalanceRequest& request);

}  // namespace spillway::plan
