// A plan for people and for programs: memory per tier, lanes, step time.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/plan/choose.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/simulator.hpp"

namespace spillway::cli {

struct PlanView {
  const plan::Workload& workload;
  const plan::Placement& placement;
  const plan::Budgets& budgets;
  const plan::MachineProfile& profile;
  const plan::Prediction& prediction;
  std::vector<plan::MemoryItem> memory;
};

[[nodiscard]] std::string to_text(const PlanView& view);
[[nodiscard]] nlohmann::ordered_json to_json(const PlanView& view);

}  // namespace spillway::cli
