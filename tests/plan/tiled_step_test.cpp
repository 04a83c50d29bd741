// Plans of workloads in tiles: free of races, right content, and the traffic that formulas say.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::tiled_step_test {
namespace {

TEST(OperatorTiles, AreForOneRankWhoseActivationsStayOnTheDevice) {
  const Budgets plenty{1_GiB, 1_GiB, 1_GiB};
  Workload workload = RandomCases(1).next_tiled().workload;
  EXPECT_NO_THROW(std::ignore = choose_placement(workload, plenty, {}));
  const PlacementRequest offload{.keep = true, .offload = true};
  EXPECT_THROW(std::ignore = choose_placement(workload, plenty, offload), Error);
  workload.tensor.count = 2;
  EXPECT_THROW(std::ignore = choose_placement(workload, plenty, {}), Error);
}

TEST(TiledStepProperty, EveryPlanIsFreeOfRacesAndFindsTheRightContent) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 600; ++i) {
    expect_correct(cases.next_tiled());
    if (testing::Test::HasFatalFailure()) FAIL() << "case " << i;
  }
}

/// Element size x padded parameters x visits: an embedding's tile goes up in forward, a layer's in
/// forward, in recomputation where that runs it, and in backward, a head's twice, for which a tied
/// head takes the embedding's; a resident block once, if it is updated off the device.
Bytes uploads_by_formula(const Workload& w, const Placement& p) {
  const std::uint64_t passes =
      std::uint64_t{w.rounds} * (p.order == WorkOrder::layer_major ? 1 : w.micro_batches);
  Bytes sum;
  for (std::uint32_t b = 0; b < w.blocks.size(); ++b) {
    const BlockShape& block = w.blocks[b];
    const bool recomputes = block.feeds_backward && !p.blocks[w.first_block(block.layer)].saved;
    const std::uint64_t of_embedding = w.tied_head ? 3 : 1;
    const std::uint64_t visits = block.layer == 0 ? of_embedding : recomputes ? 3 : 2;
    const bool updated_elsewhere = p.blocks[b].state != Tier::device;
    const std::uint64_t times = p.blocks[b].resident() ? updated_elsewhere : visits * passes;
    sum += Bytes{block.padded_parameters.value() * size_of(w.compute) * times};
  }
  return sum;
}

TEST(TiledStepProperty, MovesWhatTheFormulasSay) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 300; ++i) {
    const auto [workload, placement] = cases.next_tiled();
    const StepPlan plan = build_training_step(workload, placement);
    EXPECT_EQ(bytes_moved(plan, kUploadParams), uploads_by_formula(workload, placement));
    EXPECT_EQ(bytes_moved(plan, kDownloadGrads), downloads_by_formula(workload, placement));
    const ActivationTraffic boundaries = boundary_traffic(workload, placement);
    EXPECT_EQ(bytes_moved(plan, kSaveBoundary), boundaries.saved);
    EXPECT_EQ(bytes_moved(plan, kLoadBoundary), boundaries.saved);
    EXPECT_EQ(bytes_moved(plan, kSpillBoundary), boundaries.spilled);
    EXPECT_EQ(bytes_moved(plan, kFetchBoundary), boundaries.spilled);
  }
}

TEST(TiledStepProperty, EveryTileIsUpdatedAndNormedOnceAndEveryMicroBatchWorkedOnce) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 300; ++i) {
    const auto [workload, placement] = cases.next_tiled();
    const StepPlan plan = build_training_step(workload, placement);
    std::map<std::uint32_t, int> updates, norms;
    std::set<std::vector<std::uint32_t>> work;
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::update) ++updates[op.tile];
      if (op.kind == OpKind::grad_norm) ++norms[op.tile];
      if (op.kind == OpKind::forward || op.kind == OpKind::loss || op.kind == OpKind::backward) {
        // A second forward recomputes, a second loss is the head's backward.
        const auto kind = static_cast<std::uint32_t>(op.kind);
        const bool first = work.insert({kind, 0, op.block, op.round, op.micro_batch}).second;
        EXPECT_TRUE(first || work.insert({kind, 1, op.block, op.round, op.micro_batch}).second);
        EXPECT_NE(op.block, 0U) << "the vectors are read, never run";
      }
    }
    const std::size_t tiles = make_tiles(workload, placement.tile_parameters, /*replica=*/0).size();
    EXPECT_EQ(updates.size(), tiles);
    EXPECT_EQ(norms.size(), tiles);
    for (const auto& [tile, times] : updates) EXPECT_EQ(times, 1);
    for (const auto& [tile, times] : norms) EXPECT_EQ(times, 1);
    std::size_t visits = 0;
    for (std::uint32_t b = 1; b < workload.blocks.size(); ++b) {
      const bool keeps =
          placement.blocks[workload.first_block(workload.layer_of(b))].saved.has_value();
      visits += workload.blocks[b].feeds_backward && !keeps ? 3U : 2U;
      if (workload.tied_head && workload.blocks[b].layer == 0) visits += 2;
    }
    EXPECT_EQ(work.size(), std::size_t{workload.rounds} * workload.micro_batches * visits);
  }
}

TEST(TiledStep, TheCheckerSeesTilesOutOfOrder) {
  RandomCases cases(property_seed());
  const auto [workload, placement] = cases.next_tiled();
  StepPlan plan = build_training_step(workload, placement);
  // The head's first scan and what ends the step change places.
  std::swap(*std::find_if(plan.ops.begin(), plan.ops.end(),
                          [](const Op& op) { return op.kind == OpKind::loss; }),
            plan.ops.back());
  EXPECT_NE(find_wrong_content(plan), "");
}

TEST(TiledStep, VectorsStayOnTheDeviceWhateverIsAskedFor) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 50; ++i) {
    const Workload workload = cases.tiled_workload();
    const Budgets plenty{Bytes{1ULL << 40}, Bytes{1ULL << 40}, Bytes{1ULL << 40}};
    for (const auto resident : {std::optional<bool>(), {false}, {true}}) {
      PlacementRequest request;
      request.resident = resident;
      const auto choice = choose_placement(workload, plenty, request);
      const auto& placement = std::get<Placement>(choice);
      EXPECT_TRUE(placement.blocks.front().resident());
      EXPECT_EQ(any_streamed(workload, placement), resident == false);
      EXPECT_EQ(find_race(build_training_step(workload, placement)), "");
    }
  }
}

TEST(TiledStep, BoundariesWaitWhereTheyAreAskedTo) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 50; ++i) {
    const Workload workload = cases.tiled_workload();
    const Budgets plenty{Bytes{1ULL << 40}, Bytes{1ULL << 40}, Bytes{1ULL << 40}};
    for (const Tier tier : {Tier::host, Tier::nvme}) {
      const auto choice = choose_placement(workload, plenty, {.activations = tier});
      const auto& placement = std::get<Placement>(choice);
      // The last layer's go to the head alone.
      EXPECT_EQ(layers_with(workload, placement, tier), workload.head_layer() - 1);
      expect_correct({workload, placement});
    }
  }
}

TEST(TiledStep, FitsADeviceThatHoldsAFewTiles) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 50; ++i) {
    const Workload workload = cases.tiled_workload();
    Budgets budgets{Bytes{}, Bytes{1ULL << 40}, Bytes{1ULL << 40}};
    const auto least = std::get<Shortage>(choose_placement(workload, budgets, PlacementRequest{}));
    ASSERT_EQ(least.tier, Tier::device);
    budgets.device = least.needed;
    const auto choice = choose_placement(workload, budgets, PlacementRequest{});
    const auto& placement = std::get<Placement>(choice);
    EXPECT_EQ(placement.parameter_slots, 1U);
    expect_correct({workload, placement});
  }
}

}  // namespace
}  // namespace spillway::plan::tiled_step_test
