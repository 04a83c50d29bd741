// The choice between placements that fit: by the simulator, within what the user left open.
#include "runtime/plan/search/fastest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/plan/predict/price.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::fastest_test {
namespace {

/// Two layers that save as much as their parameters take: there is room for either.
Workload even_workload() {
  Workload workload = small_workload();
  for (const std::size_t b : {1U, 2U}) {
    workload.blocks[b].saved_bytes = padded_bytes(workload, b);
  }
  return workload;
}

MachineProfile fast_machine() {
  MachineProfile profile;
  profile.gpu_flops = 1e9;
  profile.h2d = profile.d2h = profile.update = profile.nvme_read = profile.nvme_write = 1e15;
  profile.net = 1e15;
  return profile;
}

TEST(FastestPlacement, LeavesTheDiskAloneWhereTheFirstDoes) {
  const Workload workload = even_workload();
  const PlacementRequest streamed{.resident = false, .keep = false};
  const Placement first = chosen(workload, kUnlimited, streamed);
  ASSERT_FALSE(first.any_state(Tier::nvme));
  Budgets budgets = kUnlimited;
  budgets.host = needed(workload, first, Tier::host);
  MachineProfile machine = fast_machine();
  machine.nvme_read = machine.nvme_write = 0;  // not measured
  const PlannedStep step = fastest_placement(workload, budgets, {}, machine, first);
  EXPECT_FALSE(step.placement.any_state(Tier::nvme));
}

TEST(FastestPlacement, KeepsOnTheDiskWhatTheHostHasNoRoomFor) {
  Workload workload = small_workload();
  workload.micro_batches = 8;
  for (const std::size_t b : {1U, 2U}) workload.blocks[b].saved_bytes = 100'000_B;
  const PlacementRequest request{
      .state = Tier::nvme, .resident = false, .activations = Tier::device};
  PlacementRequest kept = request;
  kept.keep = kept.offload = true;
  kept.offload_to = Tier::nvme;
  Budgets budgets = kUnlimited;
  budgets.device = shortage_with_nothing(workload, kept, Tier::device).needed;
  budgets.host = needed(workload, chosen(workload, budgets, kept), Tier::host);
  const Placement first = chosen(workload, budgets, request);
  const PlannedStep step = fastest_placement(workload, budgets, request, fast_machine(), first);
  for (const std::size_t b : {1U, 2U}) {
    EXPECT_FALSE(first.blocks[b].saved.has_value());
    EXPECT_EQ(step.placement.blocks[b].saved, Tier::nvme);
  }
}

TEST(FastestPlacement, UpdatesOnTheHostWhereTheDeviceCannot) {
  const Workload workload = even_workload();
  const Placement first = chosen(workload, kUnlimited);
  ASSERT_TRUE(first.any_state(Tier::device));
  MachineProfile machine = fast_machine();
  ASSERT_EQ(machine.gpu_update, 0);
  const auto any_there = [&](const PlacementRequest& request) {
    const PlannedStep step = fastest_placement(workload, kUnlimited, request, machine, first);
    return step.placement.any_state(Tier::device);
  };
  EXPECT_FALSE(any_there({}));
  EXPECT_TRUE(any_there({.state = Tier::device}));
}

TEST(OpenCuts, SumRoundsWhereTheRequestSays) {
  Workload workload = small_workload();
  workload.rounds = 2;
  for (const bool on_device : {true, false}) {
    const BlockCut cut{.gradients = on_device ? Tier::device : Tier::host};
    EXPECT_TRUE(allows(workload, {.sums = on_device}, cut));
    EXPECT_FALSE(allows(workload, {.sums = !on_device}, cut));
  }
}

/// A request, with the budgets and the machine that it is for.
struct Question {
  Workload workload;
  PlacementRequest request;
  Budgets budgets = kUnlimited;
  MachineProfile machine = fast_machine();
};

/// A share of the way from what a placement of `least` needs of the device to what `most` needs.
Bytes between_needs(const Workload& workload, const PlacementRequest& least,
                    const PlacementRequest& most, std::uint64_t percent) {
  const Bytes low = needed(workload, chosen(workload, kUnlimited, least), Tier::device);
  const Bytes high = needed(workload, chosen(workload, kUnlimited, most), Tier::device);
  EXPECT_GT(high, low);
  return low + (high - low) * percent / 100U;
}

/// Layers whose activations the device cannot keep all, and a link that is fast enough to carry
/// those of some while it computes, but not of all.
Question crowded_question(RandomCases& cases) {
  Question q;
  q.workload = small_workload();
  const std::uint64_t layers = cases.between(4, 8);
  q.workload.blocks.insert(q.workload.blocks.begin() + 1, layers, q.workload.blocks[1]);
  for (std::size_t b = 1; b + 1 < q.workload.blocks.size(); ++b) {
    q.workload.blocks[b].saved_bytes = Bytes{100'000};
  }
  q.workload.micro_batches = static_cast<std::uint32_t>(cases.between(2, 4));
  q.request = {.state = Tier::host, .resident = false, .activations = Tier::device};
  PlacementRequest recomputed = q.request, kept = q.request;
  recomputed.keep = false;
  kept.keep = true;
  q.budgets.device = between_needs(q.workload, recomputed, kept, cases.between(70, 80));
  // A layer's forward takes 2 ms, its activations 1 to 2 ms of the link.
  q.machine.h2d = q.machine.d2h = static_cast<double>(cases.between(50, 100)) * 1e6;
  return q;
}

/// Room for the layers' parameters or for their activations, and a link that is too slow for the
/// parameters: the chooser prefers the activations.
Question slow_link_question(RandomCases& cases) {
  Question q;
  q.workload = even_workload();
  q.workload.blocks.insert(q.workload.blocks.begin() + 1, cases.between(0, 4),
                           q.workload.blocks[1]);
  q.request = {.state = Tier::host, .activations = Tier::device, .prefetch = 0};
  PlacementRequest resident = q.request;
  resident.resident = true;
  resident.keep = false;
  q.budgets.device = needed(q.workload, chosen(q.workload, kUnlimited, resident), Tier::device);
  q.machine.h2d = static_cast<double>(cases.between(1, 20)) * 1e5;
  return q;
}

Question any_question(RandomCases& cases) {
  Question q;
  q.workload = cases.maybe() ? cases.tiled_workload() : cases.workload();
  q.request = random_request(cases);
  if (q.workload.operator_tiles) q.request.resident.reset();  // the vectors always are
  for (const Tier tier : {Tier::device, Tier::host}) {
    const Bytes least = shortage_with_nothing(q.workload, q.request, tier).needed;
    budget_of(q.budgets, tier) = least * cases.between(100, 300) / 100U;
  }
  q.machine.h2d = q.machine.d2h = static_cast<double>(cases.between(1, 1000)) * 1e5;
  q.machine.update = static_cast<double>(cases.between(1, 1000)) * 1e6;
  if (cases.maybe()) {
    q.machine.gpu_update = static_cast<double>(cases.between(1, 1000)) * 1e7;
    q.machine.op_overhead_seconds = 1e-4;
  }
  if (cases.between(0, 3) == 0) q.machine.cores = {.compute = 1, .update = 1};
  q.request.device_updates = q.machine.gpu_update > 0;
  return q;
}

Question question(RandomCases& cases, int i) {
  return i % 4 == 0   ? crowded_question(cases)
         : i % 4 == 1 ? slow_link_question(cases)
                      : any_question(cases);
}

/// Asks 60 questions of a search; `look` sees each that has an answer, the first placement for it
/// and the step that was found.
template <class Search, class Look>
void for_each_question(const Search& search, const Look& look) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    const Question q = question(cases, i);
    const auto choice = choose_placement(q.workload, q.budgets, q.request);
    const auto* first = std::get_if<Placement>(&choice);
    if (first == nullptr) continue;
    look(q, *first,
         search(q.workload, q.budgets, q.request, q.machine, *first, SearchEffort::whole));
  }
}

TEST(FastestPlacementProperty, IsAPlacementForTheRequestAndNoSlowerThanTheFirst) {
  int faster = 0, spread = 0;
  for_each_question(fastest_placement, [&](const Question& q, const Placement& first,
                                           const PlannedStep& step) {
    expect_honoured(q.workload, step.placement, q.budgets, q.request);
    expect_correct({q.workload, step.placement});
    spread += std::ranges::any_of(step.placement.blocks,
                                  [](const BlockCut& b) { return b.saved == Tier::host; });
    const StepPlan plan = build_training_step(q.workload, step.placement);
    EXPECT_EQ(step.prediction.step_seconds, simulate(plan, q.machine).step_seconds);
    const double before = simulate(build_training_step(q.workload, first), q.machine).step_seconds;
    if (step.placement != first) {
      EXPECT_LT(step.prediction.step_seconds, 0.99 * before);
      ++faster;
    }
  });
  EXPECT_GT(faster, 20);
  EXPECT_GT(spread, 5);
}

/// Returns the request with one way of each choice that it leaves open, for every combination.
std::vector<PlacementRequest> every_request(const Question& q) {
  std::vector<PlacementRequest> list;
  constexpr int kCombinations = 2 * 2 * 14 * 3 * 3;
  for (int combination = 0; combination < kCombinations; ++combination) {
    int rest = combination;
    const auto way_of = [&](int ways) { return std::exchange(rest, rest / ways) % ways; };
    const int sums = way_of(3), residency = way_of(3), saved = way_of(14);
    const int activations = way_of(2), state = way_of(2);
    PlacementRequest each = q.request;
    const bool closed = (sums > 0 && (each.sums || q.workload.rounds == 1)) ||
                        (residency > 0 && each.resident) || (saved > 0 && each.keep) ||
                        (saved > 2 && (q.workload.operator_tiles || q.machine.cores.compute > 0)) ||
                        (activations > 0 && each.activations) ||
                        (state > 0 && (each.state || q.machine.gpu_update == 0));
    if (closed) continue;
    if (sums > 0) each.sums = sums == 1;
    if (residency > 0) each.resident = residency == 1;
    if (saved > 2 && saved < 12) each.offload_share = (saved - 2) / 10.0;
    if (saved == 1 || saved >= 12) each.keep = true;
    if (saved == 2) each.keep = false;
    if (saved >= 12) each.offload = true;
    if (saved == 13) each.offload_to = Tier::nvme;
    if (activations > 0) each.activations = Tier::host;
    if (state > 0) each.state = Tier::device;
    if (each.state != Tier::device || each.resident != false) list.push_back(each);
  }
  return list;
}

TEST(FastestWayProperty, IsTheFastestOfEveryRequestAndSimulatesFewer) {
  std::size_t simulated = 0, all = 0;
  for_each_question(
      fastest_way, [&](const Question& q, const Placement& first, const PlannedStep& step) {
        const auto seconds_of = [&](const Placement& placement) {
          return simulate(build_training_step(q.workload, placement), q.machine).step_seconds;
        };
        std::vector<Placement> tried{first};
        Placement best = first;
        double seconds = 0.99 * seconds_of(first);
        for (const PlacementRequest& request : every_request(q)) {
          const auto choice = choose_placement(q.workload, q.budgets, request);
          const auto* placement = std::get_if<Placement>(&choice);
          if (placement == nullptr || (placement->uses_disk() && !first.uses_disk())) continue;
          if (std::ranges::find(tried, *placement) != tried.end()) continue;
          tried.push_back(*placement);
          const double these = seconds_of(*placement);
          if (these < seconds) best = *placement;
          seconds = std::min(seconds, these);
        }
        EXPECT_EQ(step.placement, best);
        EXPECT_LE(step.simulated, tried.size());
        simulated += step.simulated;
        all += tried.size();
      });
  // It is about a third, and nearly all of them without the bound.
  EXPECT_LT(3 * simulated, 2 * all) << simulated << " of " << all;
}

TEST(StepBoundProperty, IsNeverLongerThanTheStepAndNearItWhereOneLaneDoesAll) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 300; ++i) {
    const auto [workload, placement] = i % 3 == 0   ? cases.next_tiled()
                                       : i % 3 == 1 ? cases.next_of_ranks()
                                                    : cases.next();
    const StepPlan plan = build_training_step(workload, placement);
    MachineProfile machine = fast_machine();
    machine.gpu_flops = 1e15;
    double* const rates[] = {&machine.gpu_flops, &machine.h2d,       &machine.d2h,
                             &machine.update,    &machine.net,       &machine.net,
                             &machine.nvme_read, &machine.nvme_write};
    double& slow = *rates[cases.between(0, 7)];
    slow = 1e3;
    if (cases.maybe()) machine.cores = {.compute = 1, .update = 1};
    if (cases.maybe()) machine.gpu_update = 1e15;
    const double step = simulate(plan, machine).step_seconds;
    const double bound = least_step_seconds(workload, placement, machine);
    EXPECT_LE(bound, step) << i;
    // The other lanes take no time to speak of; of what is read, the staging slots may hold some.
    const double held = static_cast<double>(
        (state_bytes(placement.format, placement.tile_parameters) * placement.state_slots).value());
    const double slack = &slow == &machine.nvme_read ? held / slow : 0;
    EXPECT_GE(bound + slack + 1e-3, 0.999 * step) << i;
  }
}

/// How many placements are simulated where the device has room for four times the least.
std::size_t simulated(const Workload& workload, double link) {
  MachineProfile machine = fast_machine();
  machine.h2d = machine.d2h = link;
  Budgets budgets = kUnlimited;
  budgets.device = shortage_with_nothing(workload, {}, Tier::device).needed * 4U;
  const Placement first = chosen(workload, budgets);
  return fastest_placement(workload, budgets, {}, machine, first).simulated;
}

TEST(FastestPlacement, SimulatesFewPlacementsOfALargeStep) {
  Workload workload = small_workload();
  workload.blocks.insert(workload.blocks.begin() + 1, 1000, workload.blocks[1]);
  workload.micro_batches = 64;
  EXPECT_LE(simulated(workload, 1e7), 20U);
}

TEST(FastestPlacement, SimulatesFewerPlacementsTheMoreOpsAStepHas) {
  Workload workload = small_workload();
  workload.blocks.insert(workload.blocks.begin() + 1, workload.blocks[1]);
  workload.micro_batches = 64;
  EXPECT_GT(simulated(workload, 3e4), 20U);
  workload.micro_batches = 100'000;
  EXPECT_LE(simulated(workload, 3e4), 5U);
}

}  // namespace
}  // namespace spillway::plan::fastest_test
