// What the tests of the choice of a placement share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "runtime/plan/search/choose.hpp"
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

inline PlacementRequest random_request(RandomCases& cases) {
  PlacementRequest request;
  if (cases.between(0, 2) == 0) request.state = kTiers[cases.between(0, 2)];
  if (cases.between(0, 2) == 0) request.resident = cases.maybe();
  if (request.state == Tier::device && request.resident == false) request.resident.reset();
  if (cases.between(0, 2) == 0) request.keep = cases.maybe();
  if (cases.between(0, 2) == 0) request.activations = kTiers[cases.between(0, 2)];
  if (cases.between(0, 2) == 0) request.sums = cases.maybe();
  if (cases.between(0, 3) == 0) request.order = WorkOrder::micro_batch_major;
  request.tile_parameters = ElementCount{cases.between(1, 4) * kLeafParameters};
  request.prefetch = static_cast<std::uint32_t>(cases.between(0, 3));
  return request;
}

/// Within the budgets, and as asked for.
inline void expect_honoured(const Workload& workload, const Placement& placement,
                            const Budgets& budgets, const PlacementRequest& request) {
  EXPECT_LE(needed(workload, placement, Tier::device), budgets.device);
  EXPECT_LE(needed(workload, placement, Tier::host), budgets.host);
  EXPECT_LE(needed(workload, placement, Tier::nvme), budgets.nvme);
  EXPECT_EQ(placement.order, request.order);
  for (std::uint32_t b = 0; b < placement.blocks.size(); ++b) {
    const BlockCut& block = placement.blocks[b];
    EXPECT_EQ(block.state, request.state.value_or(block.state));
    EXPECT_EQ(block.resident(), request.resident.value_or(block.resident()));
    EXPECT_EQ(block.saved.has_value(), request.keep.value_or(block.saved.has_value()));
    const bool summed = request.sums == true && workload.rounds > 1;
    EXPECT_EQ(block.gradients, block.state == Tier::device ? Tier::device
                               : !request.sums             ? block.gradients
                               : summed                    ? Tier::device
                                                           : Tier::host);
    // The vectors of tiles, and the head, make no output that waits.
    const bool ends =
        workload.layer_of(b) == workload.head_layer() || (workload.operator_tiles && b == 0);
    EXPECT_EQ(block.output, ends ? Tier::device : request.activations.value_or(block.output));
  }
}

}  // namespace spillway::plan
