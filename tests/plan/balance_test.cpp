// The cut of a model into stages: against the best of all cuts, each simulated by itself.
#include "runtime/plan/search/balance.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/stage_plans.hpp"

namespace spillway::plan::balance_test {
namespace {

using Layers = std::vector<std::uint32_t>;

constexpr double kNever = std::numeric_limits<double>::infinity();

/// A machine that takes as long to update a parameter as to train on it.
MachineProfile slow_updates() {
  MachineProfile profile;
  profile.gpu_flops = 1e9;
  profile.update = 1e7;
  profile.h2d = profile.d2h = profile.net = 1e12;
  return profile;
}

/// Returns a model whose embedding has many parameters and no FLOPs.
Workload lopsided_model() {
  Workload model = model_of(8);
  model.blocks[0].parameters = ElementCount{40 * kLeafParameters - 1};
  model.blocks[0].padded_parameters = ElementCount{40 * kLeafParameters};
  return model;
}

/// All ways to cut so many layers into so many parts.
std::vector<Layers> all_cuts(std::uint32_t layers, std::uint32_t parts) {
  if (parts == 1) return {{layers}};
  std::vector<Layers> cuts;
  for (std::uint32_t first = 1; first + parts - 1 <= layers; ++first) {
    for (Layers rest : all_cuts(layers - first, parts - 1)) {
      rest.insert(rest.begin(), first);
      cuts.push_back(std::move(rest));
    }
  }
  return cuts;
}

/// Returns how long the busiest lane of the busiest stage works; infinite if a stage does not fit.
double longest_lane(const BalanceRequest& request, const Layers& layers) {
  Pipeline cut = request.pipeline;
  cut.layers = layers;
  double longest = 0;
  for (std::uint32_t stage = 0; stage < cut.stages; ++stage) {
    const Workload own = workload_of_stage(request.model, cut, stage);
    const auto choice = choose_placement(own, request.budgets, request.placement);
    if (!std::holds_alternative<Placement>(choice)) return kNever;
    const StepPlan list = build_training_step(own, std::get<Placement>(choice));
    const Prediction prediction = simulate(list, slow_updates());
    for (const LaneUse& lane : prediction.lanes) longest = std::max(longest, lane.busy);
  }
  return longest;
}

double least_of_all_cuts(const BalanceRequest& request) {
  double least = kNever;
  for (const Layers& cut : all_cuts(request.model.layers(), request.pipeline.stages)) {
    least = std::min(least, longest_lane(request, cut));
  }
  return least;
}

TEST(Balance, IsTheBestOfAllCutsWhereUpdatesCount) {
  const Workload model = lopsided_model();
  const MachineProfile profile = slow_updates();
  for (const std::uint32_t stages : {2U, 3U, 4U}) {
    const Pipeline pipeline{PipelineSchedule::one_f_one_b, stages, 2 * stages, 1};
    const BalanceRequest request{model, pipeline, kUnlimited, {.state = Tier::host}, &profile};
    const BalancedLayers balanced = balance_layers(request);
    EXPECT_LT(balanced.seconds, balanced.by_flops) << stages << " stages";
    EXPECT_DOUBLE_EQ(longest_lane(request, balanced.layers), least_of_all_cuts(request))
        << stages << " stages";
  }
}

// Its stages may be busy for less and yet wait for each other: then the cut by FLOPs stays.
TEST(Balance, MakesNoInterleavedStepLonger) {
  const Workload model = lopsided_model();
  const MachineProfile profile = slow_updates();
  for (const std::uint32_t stages : {2U, 3U}) {
    const Pipeline pipeline{PipelineSchedule::interleaved, stages, 2 * stages, 2};
    const BalancedLayers balanced =
        balance_layers({model, pipeline, kUnlimited, {.state = Tier::host}, &profile});
    EXPECT_LE(balanced.seconds, balanced.by_flops) << stages << " stages";
  }
}

TEST(Balance, LeavesTheCutByFlopsForNothingLess) {
  const Workload model = model_of(8);
  MachineProfile profile = slow_updates();
  profile.update = 1e12;
  const Pipeline pipeline{PipelineSchedule::one_f_one_b, 3, 6, 1};
  const BalancedLayers balanced =
      balance_layers({model, pipeline, kUnlimited, {.state = Tier::host}, &profile});
  Pipeline cut = pipeline;
  cut.layers = balanced.layers;
  EXPECT_EQ(cut_layers(model, cut), cut_layers(model, pipeline));
  EXPECT_EQ(balanced.seconds, balanced.by_flops);
}

// A cut that gains too little is given up, and its seconds with it.
TEST(Balance, ACutThatStaysHasItsOwnSeconds) {
  const Workload model = lopsided_model();
  const Pipeline pipeline{PipelineSchedule::one_f_one_b, 3, 6, 1};
  int stayed = 0;
  int changed = 0;
  for (double update = 1e7; update < 1e12; update *= 2) {
    MachineProfile profile = slow_updates();
    profile.update = update;
    const BalancedLayers balanced =
        balance_layers({model, pipeline, kUnlimited, {.state = Tier::host}, &profile});
    Pipeline cut = pipeline;
    cut.layers = balanced.layers;
    const bool stays = cut_layers(model, cut) == cut_layers(model, pipeline);
    EXPECT_EQ(balanced.seconds == balanced.by_flops, stays) << update;
    ++(stays ? stayed : changed);
  }
  EXPECT_GT(stayed, 0);
  EXPECT_GT(changed, 0);
}

// The first stage of 1F1B has the most rounds in flight, and here the largest block too.
TEST(Balance, FindsACutThatFitsWhereThatByFlopsDoesNot) {
  const Workload model = lopsided_model();
  const Pipeline pipeline{PipelineSchedule::one_f_one_b, 3, 6, 1};
  const MachineProfile profile = slow_updates();
  const PlacementRequest placing{.state = Tier::device, .keep = true};
  const Layers by_flops = balance_layers({model, pipeline, kUnlimited, placing}).layers;
  Budgets budgets = kUnlimited;
  for (;; budgets.device = budgets.device - 4_KiB) {
    const BalanceRequest request{model, pipeline, budgets, placing};
    if (longest_lane(request, by_flops) != kNever) {
      const Workload first = workload_of_stage(model, pipeline, 0);
      budgets.device = needed(first, chosen(first, budgets, placing), Tier::device);
      continue;
    }
    ASSERT_LT(least_of_all_cuts(request), kNever);
    EXPECT_LT(longest_lane(request, balance_layers(request).layers), kNever);
    const BalanceRequest timed{model, pipeline, budgets, placing, &profile};
    const BalancedLayers balanced = balance_layers(timed);
    EXPECT_LT(longest_lane(timed, balanced.layers), kNever);
    EXPECT_EQ(balanced.by_flops, 0);
    EXPECT_GT(balanced.seconds, 0);
    break;
  }
}

TEST(Balance, TakesPartsAsTheyAreNamed) {
  const Workload model = model_of(4);
  Pipeline pipeline{PipelineSchedule::one_f_one_b, 2, 2, 1};
  pipeline.layers = {1, 5};
  const std::vector<BlockRange> named{{0, 1}, {1, 6}};
  EXPECT_EQ(cut_layers(model, pipeline), named);
  for (const Layers& wrong : {Layers{6}, Layers{2, 2, 2}, Layers{2, 3}, Layers{0, 6}}) {
    pipeline.layers = wrong;
    EXPECT_THROW(std::ignore = cut_layers(model, pipeline), Error);
  }
}

}  // namespace
}  // namespace spillway::plan::balance_test
