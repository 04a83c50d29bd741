// The choice of a placement within budgets: honoured requests and honest shortages.
#include "runtime/plan/search/choose.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::choose_test {
namespace {

TEST(Choose, StagesNoMoreThanTheLargestTile) {
  const Workload workload = small_workload();
  const PlacementRequest request{.tile_parameters = ElementCount{1 << 20}};
  const Placement placement = chosen(workload, kUnlimited, request);
  EXPECT_EQ(placement.tile_parameters.value(), 3 * kLeafParameters);
  EXPECT_EQ(make_tiles(workload, placement.tile_parameters, /*replica=*/0).size(),
            make_tiles(workload, request.tile_parameters, /*replica=*/0).size());
}

TEST(Choose, RefusesDeviceStateWithStreamedParameters) {
  const PlacementRequest request{.state = Tier::device, .resident = false};
  EXPECT_THROW((void)choose_placement(small_workload(), kUnlimited, request), Error);
}

/// The same with nothing of the boundaries on the device but what an op needs.
Placement without_boundaries(Placement placement) {
  for (BlockCut& block : placement.blocks) block.output = Tier::host;
  placement.boundary_slots = 1;
  return placement;
}

/// The least over every placement that the request allows, tried one by one.
Bytes least_device(const Workload& workload, const PlacementRequest& request) {
  const std::size_t n = workload.blocks.size();
  Placement p;
  p.order = request.order;
  p.tile_parameters = request.tile_parameters;
  p.gradient_slots = request.order == WorkOrder::layer_major ? 1 : static_cast<std::uint32_t>(n);
  Bytes least = kPlenty;
  for (std::uint32_t mask = 0; mask < (1U << (2 * n)); ++mask) {
    p.blocks.clear();
    bool allowed = true;
    for (std::size_t b = 0; b < n; ++b) {
      const bool resident = (mask >> b & 1) != 0;
      const bool keep = (mask >> (n + b) & 1) != 0;
      allowed = allowed && resident == request.resident.value_or(resident);
      allowed = allowed && keep == request.keep.value_or(keep);
      const Tier state = request.state.value_or(Tier::host);
      const bool sums = request.sums == true && workload.rounds > 1;
      p.blocks.push_back({.parameters = resident ? Tier::device : Tier::host,
                          .gradients = sums || state == Tier::device ? Tier::device : Tier::host,
                          .state = state,
                          .saved = keep ? std::optional(Tier::device) : std::nullopt});
      allowed = allowed && (p.blocks[b].state != Tier::device || resident);
    }
    const bool pair =
        workload.tied_head && !p.blocks.front().resident() && !p.blocks.back().resident();
    p.parameter_slots = pair ? 2 : 1;
    if (!allowed) continue;
    if (request.activations.value_or(Tier::device) == Tier::device) {
      least = std::min(least, needed(workload, p, Tier::device));
    }
    if (request.activations != Tier::device) {
      least = std::min(least, needed(workload, without_boundaries(p), Tier::device));
    }
  }
  return least;
}

TEST(ChooseProperty, AShortageReportsTheTrueLeastOfTheDevice) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 60; ++i) {
    Workload workload = cases.workload();
    if (workload.blocks.size() > 4) workload.blocks.resize(4);
    const PlacementRequest request = random_request(cases);
    EXPECT_EQ(shortage_with_nothing(workload, request, Tier::device).needed,
              least_device(workload, request))
        << "case " << i;
  }
}

TEST(ChooseProperty, WhatAShortageAsksForIsEnoughAndOneByteLessIsNot) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 300; ++i) {
    const Workload workload = cases.workload();
    const PlacementRequest request = random_request(cases);
    for (const Tier tier : kTiers) {
      Budgets budgets = kUnlimited;
      // What the host must hold depends on whether the device can hold everything.
      if (tier != Tier::device && cases.maybe()) {
        budgets.device = shortage_with_nothing(workload, request, Tier::device).needed;
      }
      budget_of(budgets, tier) = Bytes{};
      const auto choice = choose_placement(workload, budgets, request);
      const auto* shortage = std::get_if<Shortage>(&choice);
      ASSERT_NE(shortage, nullptr);
      EXPECT_EQ(shortage->tier, tier);
      EXPECT_EQ(shortage->budget, Bytes{});
      budget_of(budgets, tier) = shortage->needed;
      EXPECT_TRUE(std::holds_alternative<Placement>(choose_placement(workload, budgets, request)))
          << name_of(tier) << " in case " << i;
      budget_of(budgets, tier) -= Bytes{1};
      EXPECT_TRUE(std::holds_alternative<Shortage>(choose_placement(workload, budgets, request)))
          << name_of(tier) << " in case " << i;
    }
  }
}

TEST(ChooseProperty, FitsHonoursRequestsAndCanBeBuilt) {
  RandomCases cases(property_seed());
  int placed = 0;
  for (int i = 0; i < 600; ++i) {
    const Workload workload = cases.workload();
    const PlacementRequest request = random_request(cases);
    const Budgets budgets{Bytes{cases.between(0, 1'500'000)}, Bytes{cases.between(0, 1'500'000)},
                          kPlenty};
    const auto choice = choose_placement(workload, budgets, request);
    const auto* placement = std::get_if<Placement>(&choice);
    if (placement == nullptr) continue;
    ++placed;
    expect_honoured(workload, *placement, budgets, request);
    (void)build_training_step(workload, *placement);
    (void)build_flush(workload, *placement);
    (void)build_evaluation(workload, *placement);
    (void)build_snapshot(workload, *placement);
  }
  EXPECT_GT(placed, 100);
}

TEST(ChooseProperty, ALargerBudgetNeverFailsWhereASmallerFits) {
  RandomCases cases(property_seed());
  int compared = 0;
  for (int i = 0; i < 1200; ++i) {
    Workload workload = cases.workload();
    PlacementRequest request = random_request(cases);
    if (cases.maybe()) {
      workload.micro_batches += 3;
      request.keep = request.offload = true;
      if (cases.maybe()) request.offload_to = Tier::nvme;
    }
    Budgets budgets{Bytes{cases.between(0, 1'500'000)}, Bytes{cases.between(0, 1'500'000)},
                    Bytes{cases.between(0, 3'000'000)}};
    const auto fits = [&] {
      return std::holds_alternative<Placement>(choose_placement(workload, budgets, request));
    };
    if (!fits()) continue;
    for (int grown = 0; grown < 5; ++grown, ++compared) {
      budget_of(budgets, kTiers[cases.between(0, 2)]) += Bytes{cases.between(0, 500'000)};
      EXPECT_TRUE(fits()) << "case " << i;
    }
  }
  EXPECT_GT(compared, 400);
}

}  // namespace
}  // namespace spillway::plan::choose_test
