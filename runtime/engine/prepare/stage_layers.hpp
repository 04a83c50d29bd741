// Which layers each stage of a pipeline has: as the options name them, or as the planner balances
// them. Any thread.
#pragma once

#include <cstdint>

#include "runtime/config/train_options.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/search/balance.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Whether the planner may choose the layers of the stages, where the options leave them open.
enum class StageLayers : std::uint8_t { chosen, kept };

/// Returns the stage's part of the workload, as the options cut it; all of it if there is one
/// stage.
[[nodiscard]] plan::Workload of_stage(plan::Workload whole, const config::TrainOptions& options,
                                      std::uint32_t stage);

/// Whether the planner chooses the layers of stages: the options do not name them, and passes do
/// not use stale weights, whose age depends on the stage.
[[nodiscard]] bool balances_stages(const config::TrainOptions& options);

/// Returns the layers of the stages of `whole` with which they fit and are busy equally long;
/// without a profile, with which they fit.
[[nodiscard]] plan::BalancedLayers balance_stages(const plan::Workload& whole,
                                                  const config::TrainOptions& options,
                                                  const plan::Budgets& budgets,
                                                  const plan::MachineProfile* profile = nullptr);

}  // namespace spillway::engine
