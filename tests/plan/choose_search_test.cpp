// The search for a placement: it finds what a search without shortcuts finds, and looks at few.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/plain_choice.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::choose_search_test {
namespace {

PlacementRequest request_for(RandomCases& cases, const Workload& workload) {
  PlacementRequest request = random_request(cases);
  request.commits = cases.maybe();
  if (workload.tiled) {
    if (request.activations != Tier::device) request.activations.reset();
    return request;
  }
  if (cases.between(0, 3) == 0) request.keep = request.offload = true;
  if (!request.keep && cases.maybe()) {
    request.offload_share = static_cast<double>(cases.between(1, 9)) / 10;
  }
  return request;
}

/// Up to twice what the request needs at least, so that many nearly fit.
Budgets tight_budgets(RandomCases& cases, const Workload& workload,
                      const PlacementRequest& request) {
  Budgets budgets = kUnlimited;
  for (const Tier tier : kTiers) {
    if (cases.between(0, 3) == 0) continue;
    Budgets none = kUnlimited;
    budget_of(none, tier) = Bytes{};
    const auto choice = plain_choice(workload, none, request);
    const auto* shortage = std::get_if<Shortage>(&choice);
    if (shortage == nullptr) continue;
    const std::uint64_t least = shortage->needed.value();
    budget_of(budgets, tier) = Bytes{cases.between(least - least / 8, least * 2)};
  }
  return budgets;
}

/// Some with more blocks and micro-batches than the search looks at one by one.
Workload workload_for(RandomCases& cases, int i) {
  if (i % 5 == 0) return cases.tiled_workload();
  Workload workload = cases.workload();
  if (i % 100 != 1) return workload;
  const BlockShape layer = workload.blocks[1];
  workload.blocks.insert(workload.blocks.begin() + 1, cases.between(20, 30), layer);
  workload.micro_batches = static_cast<std::uint32_t>(cases.between(1, 40));
  return workload;
}

TEST(ChooseSearchProperty, FindsWhatAPlainSearchFinds) {
  RandomCases cases(property_seed());
  int placed = 0, refused = 0;
  for (int i = 0; i < 600; ++i) {
    const Workload workload = workload_for(cases, i);
    const PlacementRequest request = request_for(cases, workload);
    const Budgets budgets = tight_budgets(cases, workload, request);
    const auto expected = plain_choice(workload, budgets, request);
    const auto choice = choose_placement(workload, budgets, request);
    ASSERT_EQ(choice.index(), expected.index()) << "case " << i;
    if (const auto* placement = std::get_if<Placement>(&choice)) {
      ++placed;
      ASSERT_EQ(*placement, std::get<Placement>(expected)) << "case " << i;
    } else {
      ++refused;
      const auto& shortage = std::get<Shortage>(choice);
      const auto& least = std::get<Shortage>(expected);
      ASSERT_EQ(shortage.tier, least.tier) << "case " << i;
      ASSERT_EQ(shortage.needed, least.needed) << "case " << i;
      ASSERT_EQ(shortage.budget, least.budget) << "case " << i;
    }
  }
  EXPECT_GT(placed, 100);
  EXPECT_GT(refused, 100);
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
