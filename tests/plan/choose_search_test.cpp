// The search for a placement: what it counts, and how few placements it looks at.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/search/draft.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::choose_search_test {
namespace {

TEST(ChooseSearchProperty, CountsTheMemoryOfBlocksThatChange) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 300; ++i) {
    const Case c = i % 3 == 0   ? cases.next_tiled()
                   : i % 3 == 1 ? cases.next_of_ranks()
                                : cases.next();
    const auto& [workload, placement] = c;
    const PoolSizes sizes(workload, placement.format, placement.tile_parameters, placement.commits);
    detail::Draft draft(sizes, kUnlimited, placement);
    for (std::uint32_t b = 0; b < draft.size(); ++b) {
      Placement other = cases.placement(workload);
      if (!is_admissible(workload, other.blocks[b])) continue;
      draft.set(b, other.blocks[b]);
      for (const Tier tier : kTiers) {
        ASSERT_EQ(draft.needed(tier), needed(workload, draft.placement(), tier)) << "case " << i;
      }
    }
  }
}

TEST(ChooseSearch, SpreadsBoundariesLayerByLayerAndThenGivesUpSlotBySlot) {
  using Spread = std::pair<std::size_t, std::uint32_t>;  // layers off the device, slots
  const std::vector<Spread> expected{{0, 0}, {1, 4}, {2, 4}, {3, 4}, {3, 3}, {3, 2}, {3, 1}};
  const detail::BoundaryPlans plans(small_workload(), {.prefetch = 1}, /*spill=*/false,
                                    /*shrink=*/true);
  EXPECT_EQ(plans.first_with_fewer_slots(), 4U);
  ASSERT_EQ(plans.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(Spread(plans[i].off_device, plans[i].slots), expected[i]) << i;
  }
}

TEST(ChooseSearch, PrefetchesNoMoreBlocksThanThereAre) {
  const Workload workload = small_workload();
  const PlacementRequest request{.state = Tier::host, .resident = false, .prefetch = ~0U >> 1};
  const Placement placement = chosen(workload, kUnlimited, request);
  EXPECT_LE(placement.parameter_slots, workload.blocks.size() + 1);
}

/// The first of many spreads with which the device has room for all else, where the host has none
/// for anything but those boundaries.
TEST(ChooseSearch, FindsTheSpreadWithWhichTheDeviceHoldsEverythingElse) {
  Workload workload = small_workload();
  workload.blocks.insert(workload.blocks.begin() + 1, 60, workload.blocks[1]);
  workload.micro_batches = 64;
  PlacementRequest everything{.state = Tier::device, .resident = true, .keep = true};
  Budgets budgets = kUnlimited;
  for (const Tier activations : {Tier::device, Tier::host}) {
    everything.activations = activations;
    const Placement placement = chosen(workload, kUnlimited, everything);
    budgets.device = std::exchange(budgets.host, needed(workload, placement, Tier::device));
  }
  budgets.device = (budgets.device + budgets.host) / 2U;
  budgets.host = kPlenty;
  everything.activations.reset();
  const Placement placement = chosen(workload, budgets, everything);
  budgets.host = needed(workload, placement, Tier::host);
  EXPECT_EQ(chosen(workload, budgets), placement);
}

/// The second accumulator of gradients takes as much as the boundaries of 32 layers. With a single
/// one the device has room for a spread that is many plans earlier.
TEST(ChooseSearch, FindsTheFirstSpreadThatLeavesRoomForBothGradientSlots) {
  Workload workload = small_workload();
  workload.blocks.insert(workload.blocks.begin() + 1, 60, workload.blocks[1]);
  workload.micro_batches = 4;
  PlacementRequest request{
      .state = Tier::host, .resident = false, .keep = false, .activations = Tier::host};
  Placement placement = chosen(workload, kUnlimited, request);
  ASSERT_EQ(placement.gradient_slots, 2U);
  for (std::size_t b = 40; b < placement.blocks.size(); ++b) {
    placement.blocks[b].output = Tier::device;
  }
  Budgets budgets = kUnlimited;
  budgets.device = needed(workload, placement, Tier::device);
  request.activations.reset();
  EXPECT_EQ(chosen(workload, budgets, request), placement);
}

TEST(ChooseSearch, LooksAtFewPlacementsOfALargeModelWithManyMicroBatches) {
  Workload workload = small_workload();
  workload.blocks.insert(workload.blocks.begin() + 1, 1000, workload.blocks[1]);
  workload.micro_batches = 8192;
  constexpr std::size_t kFew = 100;
  for (const std::uint32_t rounds : {1U, 2U}) {
    workload.rounds = rounds;
    const PlacementRequest request{.prefetch = ~0U >> 1};
    Budgets budgets = kUnlimited;
    for (const Tier tier : {Tier::device, Tier::host}) {
      budget_of(budgets, tier) = Bytes{};
      const CountedChoice refused = count_choice(workload, budgets, request);
      EXPECT_LE(refused.tried, kFew);
      ASSERT_TRUE(std::holds_alternative<Shortage>(refused.choice));
      budget_of(budgets, tier) = std::get<Shortage>(refused.choice).needed * 5U / 4U;
    }
    const CountedChoice placed = count_choice(workload, budgets, request);
    EXPECT_LE(placed.tried, kFew);
    EXPECT_TRUE(std::holds_alternative<Placement>(placed.choice));
  }
}

}  // namespace
}  // namespace spillway::plan::choose_search_test
