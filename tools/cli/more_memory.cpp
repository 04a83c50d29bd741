#include "tools/cli/more_memory.hpp"

#include <optional>
#include <variant>

#include "runtime/engine/prepare/place.hpp"
#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/search/fastest.hpp"

namespace spillway::cli {
namespace {

using plan::Tier;

std::optional<MoreMemory> with_budgets(const engine::Planned& planned, const plan::Budgets& budgets,
                                       Tier tier) {
  const plan::PlacementRequest request = engine::placement_request(planned.options);
  const plan::Workload& workload = planned.workload;
  const auto choice = plan::choose_placement(workload, budgets, request);
  const auto* const fitting = std::get_if<plan::Placement>(&choice);
  if (fitting == nullptr) return std::nullopt;
  const plan::PlannedStep step =
      plan::fastest_placement(workload, budgets, request, planned.profile, *fitting);
  return MoreMemory{.tier = tier,
                    .taken = plan::total(plan::memory_items(workload, step.placement), tier),
                    .step_seconds = step.prediction.step_seconds};
}

}  // namespace

std::vector<MoreMemory> more_memory(const engine::Planned& planned) {
  std::vector<MoreMemory> list;
  if (planned.workload.stage.count > 1) return list;
  for (const Tier tier : {Tier::host, Tier::device}) {
    plan::Budgets budgets = planned.budgets;
    Bytes& budget = tier == Tier::device ? budgets.device : budgets.host;
    budget = budget * 2;
    const auto more = with_budgets(planned, budgets, tier);
    const double worthwhile = planned.prediction.step_seconds * plan::kWorthwhile;
    if (more && more->step_seconds < worthwhile) list.push_back(*more);
  }
  return list;
}

}  // namespace spillway::cli
