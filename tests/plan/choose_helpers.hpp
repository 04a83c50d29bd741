// What the tests of the choice of a placement share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "runtime/plan/choose.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan {

inline constexpr Bytes kPlenty{1ULL << 50};
inline constexpr Budgets kUnlimited{.device = kPlenty, .host = kPlenty, .nvme = kPlenty};

inline Bytes& budget_of(Budgets& budgets, Tier tier) {
  return tier == Tier::device ? budgets.device : tier == Tier::host ? budgets.host : budgets.nvme;
}

inline Bytes needed(const Workload& workload, const Placement& placement, Tier tier) {
  return total(memory_items(workload, placement), tier);
}

/// What a placement of this request needs of the tier at least, by its own shortage report.
inline Shortage shortage_with_nothing(const Workload& workload, const PlacementRequest& request,
                                      Tier tier) {
  Budgets budgets = kUnlimited;
  budget_of(budgets, tier) = Bytes{};
  const auto choice = choose_placement(workload, budgets, request);
  const auto* shortage = std::get_if<Shortage>(&choice);
  EXPECT_NE(shortage, nullptr) << "nothing of " << name_of(tier) << " is enough";
  return shortage == nullptr ? Shortage{} : *shortage;
}

inline Placement chosen(const Workload& workload, const Budgets& budgets,
                        const PlacementRequest& request = {}) {
  const auto choice = choose_placement(workload, budgets, request);
  const auto* placement = std::get_if<Placement>(&choice);
  EXPECT_NE(placement, nullptr);
  return placement == nullptr ? Placement{} : *placement;
}

inline bool all_blocks(const Placement& placement, bool (*holds)(const BlockPlacement&)) {
  return std::all_of(placement.blocks.begin(), placement.blocks.end(), holds);
}

}  // namespace spillway::plan
