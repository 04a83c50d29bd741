// The choice of a placement within budgets: preferences, honoured requests and honest shortages.
#include "runtime/plan/placement/choose.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::choose_test {
namespace {

TEST(Choose, PutsEverythingOnTheDeviceWhereItFits) {
  const Workload workload = small_workload();
  const Placement placement = chosen(workload, kUnlimited);
  EXPECT_TRUE(all_blocks(placement, [](const BlockCut& b) {
    return b.resident() && b.saved && b.state == Tier::device;
  }));
  Budgets exact = kUnlimited;
  exact.device = needed(workload, placement, Tier::device);
  EXPECT_FALSE(chosen(workload, exact).any_state(Tier::host));
  exact.device -= Bytes{1};
  const Placement offloaded = chosen(workload, exact);
  EXPECT_FALSE(offloaded.any_state(Tier::device));
  EXPECT_FALSE(offloaded.any_state(Tier::nvme));
}

TEST(Choose, KeepsActivationsBeforeItMakesParametersResident) {
  Workload workload = small_workload();
  workload.blocks[1].saved_bytes = workload.blocks[2].saved_bytes = Bytes{100'000};
  const PlacementRequest host{.state = Tier::host, .activations = Tier::device};
  Budgets budgets = kUnlimited;
  budgets.device = shortage_with_nothing(workload, host, Tier::device).needed;
  const Placement least = chosen(workload, budgets, host);
  EXPECT_EQ(least.gradient_slots, 1U);
  EXPECT_EQ(least.parameter_slots, 1U);
  // Room for the second slots, and for one more set of activations in place of the scratch.
  budgets.device += Bytes{2 * 3 * kLeafParameters * 4 + 100'000};
  const Placement more = chosen(workload, budgets, host);
  EXPECT_TRUE(more.blocks[1].saved && more.blocks[2].saved);
  EXPECT_TRUE(all_blocks(more, [](const BlockCut& b) { return !b.resident(); }));
  for (; budgets.device < Bytes{1'000'000}; budgets.device += Bytes{4096}) {
    const Placement placement = chosen(workload, budgets, host);
    EXPECT_TRUE(placement.blocks[1].saved && placement.blocks[2].saved) << budgets.device.value();
  }
  EXPECT_TRUE(all_blocks(chosen(workload, kUnlimited, host),
                         [](const BlockCut& b) { return b.resident(); }));
}

TEST(Choose, SpillsStateToNvmeOnlyWhereTheHostIsTooSmall) {
  const Workload workload = small_workload();
  const PlacementRequest streamed{.resident = false,
                                  .tile_parameters = ElementCount{kLeafParameters}};
  const Placement on_host = chosen(workload, kUnlimited, streamed);
  EXPECT_TRUE(all_blocks(on_host, [](const BlockCut& b) { return b.state == Tier::host; }));
  Budgets budgets = kUnlimited;
  budgets.host = needed(workload, on_host, Tier::host);
  EXPECT_FALSE(chosen(workload, budgets, streamed).any_state(Tier::nvme));
  std::size_t spilled = 0;
  const Bytes least = shortage_with_nothing(workload, streamed, Tier::host).needed;
  for (budgets.host -= Bytes{1}; budgets.host >= least; budgets.host -= Bytes{1000}) {
    const Placement placement = chosen(workload, budgets, streamed);
    std::size_t now = 0;
    for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
      now += placement.blocks[b].state == Tier::nvme ? 1U : 0U;
      EXPECT_TRUE(b == 0 || placement.blocks[b].state >= placement.blocks[b - 1].state);
    }
    EXPECT_GE(now, std::max<std::size_t>(spilled, 1));
    spilled = now;
  }
  EXPECT_EQ(spilled, workload.blocks.size());
}

/// Boundaries of ten layers and twelve micro-batches weigh far more than anything else.
Workload workload_of_many_boundaries() {
  Workload workload = small_workload();
  workload.blocks.insert(workload.blocks.begin() + 2, 8, workload.blocks[1]);
  workload.micro_batches = 12;
  workload.boundary_bytes = Bytes{100'000};
  return workload;
}

TEST(Choose, TakesActivationsOffTheDeviceForAsFewAndAsEarlyBlocksAsItMust) {
  const Workload workload = workload_of_many_boundaries();
  const PlacementRequest request{.state = Tier::host, .resident = false, .keep = false};
  Budgets budgets = kUnlimited;
  budgets.device = needed(workload, chosen(workload, kUnlimited, request), Tier::device);
  EXPECT_EQ(chosen(workload, budgets, request).boundary_slots, 0U);
  const Bytes least = shortage_with_nothing(workload, request, Tier::device).needed;
  // 11 blocks and the gradients, 12 boundaries each; one each under way, two more slots and a
  // scratch must do.
  EXPECT_LT(least + workload.boundary_bytes * (12ULL * 11 - 3), budgets.device);
  std::ptrdiff_t before = 1;
  for (budgets.device -= Bytes{1}; budgets.device >= least; budgets.device -= Bytes{77'777}) {
    const Placement placement = chosen(workload, budgets, request);
    const auto off = std::count_if(placement.blocks.begin(), placement.blocks.end(),
                                   [](const auto& b) { return b.output == Tier::host; });
    EXPECT_GE(off, before);
    for (std::size_t b = 1; b + 1 < placement.blocks.size(); ++b) {
      EXPECT_LE(placement.blocks[b].output, placement.blocks[b - 1].output);
    }
    before = off;
  }
  EXPECT_EQ(before, 11);
}

TEST(Choose, SpillsActivationsToNvmeOnlyWhereTheHostIsTooSmallForThemWithoutState) {
  const Workload workload = workload_of_many_boundaries();
  const PlacementRequest request{.resident = false, .keep = false};
  Budgets budgets = kUnlimited;
  budgets.device =
      shortage_with_nothing(workload, request, Tier::device).needed + workload.boundary_bytes * 14U;
  const Placement roomy = chosen(workload, budgets, request);
  EXPECT_TRUE(roomy.any_output(Tier::host));
  EXPECT_FALSE(roomy.any_output(Tier::nvme));
  budgets.host = needed(workload, roomy, Tier::host) - Bytes{1};
  const Placement tighter = chosen(workload, budgets, request);
  EXPECT_TRUE(tighter.any_state(Tier::nvme));
  EXPECT_FALSE(tighter.any_output(Tier::nvme));
  budgets.host = Bytes{4'000'000};
  const Placement tight = chosen(workload, budgets, request);
  EXPECT_FALSE(tight.any_state(Tier::host));
  EXPECT_TRUE(tight.any_output(Tier::nvme));
  EXPECT_TRUE(tight.any_output(Tier::host));
  EXPECT_EQ(tight.blocks.front().output, Tier::nvme);
}

TEST(Choose, SpillsActivationsToNvmeWhereStateIsOnTheDeviceAndTheHostTooSmall) {
  const Workload workload = workload_of_many_boundaries();
  const PlacementRequest request{.state = Tier::device, .keep = false};
  Budgets budgets = kUnlimited;
  budgets.device =
      shortage_with_nothing(workload, request, Tier::device).needed + workload.boundary_bytes * 14U;
  const Placement roomy = chosen(workload, budgets, request);
  EXPECT_TRUE(roomy.any_output(Tier::host));
  EXPECT_FALSE(roomy.any_output(Tier::nvme));
  // Without the boundaries of the first six blocks, and with room to stage those on disk.
  budgets.host = needed(workload, roomy, Tier::host) - workload.boundary_bytes * (12ULL * 6);
  const Placement tight = chosen(workload, budgets, request);
  EXPECT_EQ(tight.blocks.front().output, Tier::nvme);
  EXPECT_TRUE(tight.any_state(Tier::device));
  // What the last block makes goes to the head alone, and would gain nothing on disk.
  EXPECT_NE(tight.blocks[tight.blocks.size() - 2].output, Tier::nvme);
}

TEST(Choose, StagesNoMoreThanTheLargestTile) {
  const Workload workload = small_workload();
  const PlacementRequest request{.tile_parameters = ElementCount{1 << 20}};
  const Placement placement = chosen(workload, kUnlimited, request);
  EXPECT_EQ(placement.tile_parameters.value(), 3 * kLeafParameters);
  EXPECT_EQ(make_tiles(workload, placement.tile_parameters).size(),
            make_tiles(workload, request.tile_parameters).size());
}

TEST(Choose, RefusesDeviceStateWithStreamedParameters) {
  const PlacementRequest request{.state = Tier::device, .resident = false};
  EXPECT_THROW((void)choose_placement(small_workload(), kUnlimited, request), Error);
}

TEST(Choose, GivesUpSlotsBeforeItGivesUp) {
  const Workload workload = small_workload();
  const PlacementRequest request{
      .state = Tier::nvme, .resident = false, .activations = Tier::device, .prefetch = 3};
  const Placement roomy = chosen(workload, kUnlimited, request);
  EXPECT_EQ(roomy.parameter_slots, 4U);
  EXPECT_EQ(roomy.gradient_slots, 2U);
  EXPECT_GT(roomy.state_slots, 1U);
  Budgets budgets = kUnlimited;
  budgets.device = shortage_with_nothing(workload, request, Tier::device).needed;
  budgets.host = shortage_with_nothing(workload, request, Tier::host).needed;
  const Placement tight = chosen(workload, budgets, request);
  EXPECT_EQ(tight.parameter_slots, 1U);
  EXPECT_EQ(tight.gradient_slots, 1U);
  EXPECT_EQ(tight.state_slots, 1U);
}

TEST(Choose, MakesTheSmallerOfATiedPairResidentWhereTwoSlotsAreTooLarge) {
  Workload workload = small_workload();
  tie(workload);
  const Bytes slot{3 * kLeafParameters * 4};
  PlacementRequest request{.state = Tier::host, .resident = false};
  const Bytes streamed = shortage_with_nothing(workload, request, Tier::device).needed;
  request.resident.reset();
  const Bytes least = shortage_with_nothing(workload, request, Tier::device).needed;
  EXPECT_EQ(least, streamed - slot + Bytes{kLeafParameters * 4});
  Budgets budgets = kUnlimited;
  budgets.device = least;
  EXPECT_TRUE(chosen(workload, budgets, request).blocks.back().resident());
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
  for (int i = 0; i < 600; ++i) {
    const Workload workload = cases.workload();
    const PlacementRequest request = random_request(cases);
    const Budgets budgets{Bytes{cases.between(0, 1'500'000)}, Bytes{cases.between(0, 1'500'000)},
                          Bytes{cases.between(0, 3'000'000)}};
    SCOPED_TRACE(i);
    compared += expect_larger_budgets_fit(cases, workload, request, budgets);
  }
  EXPECT_GT(compared, 200);
}

}  // namespace
}  // namespace spillway::plan::choose_test
