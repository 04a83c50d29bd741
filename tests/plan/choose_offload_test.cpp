// The choice of a placement whose saved activations wait on the host where the device is too small.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/saved_activations.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::choose_offload_test {
namespace {

constexpr std::uint64_t kSaved = 100'000;

/// Four layers that save as much as they have to, two micro-batches.
Workload saving_workload() {
  Workload workload = small_workload();
  workload.micro_batches = 2;
  workload.blocks[1].saved_bytes = Bytes{kSaved};
  workload.blocks[2] = workload.blocks[1];
  workload.blocks.insert(workload.blocks.begin() + 1, 2, workload.blocks[1]);
  return workload;
}

TEST(ChooseOffload, SpreadsAShareOfTheBlocksEvenly) {
  const Workload workload = saving_workload();
  const auto moved = [&](double share) {
    const PlacementRequest request{.state = Tier::host,
                                   .resident = false,
                                   .offload_share = share,
                                   .activations = Tier::device};
    std::vector<bool> list;
    for (const BlockCut& block : chosen(workload, kUnlimited, request).blocks) {
      list.push_back(block.saved == Tier::host);
    }
    return list;
  };
  EXPECT_EQ(moved(0.25), (std::vector<bool>{false, false, true, false, false, false}));
  EXPECT_EQ(moved(0.5), (std::vector<bool>{false, true, false, true, false, false}));
  EXPECT_EQ(moved(0.75), (std::vector<bool>{false, true, true, false, true, false}));
}

TEST(ChooseOffload, HasRoomForTheMicroBatchesOfTwoBlocksWhereItSpreads) {
  const Workload workload = saving_workload();
  PlacementRequest request{.state = Tier::host, .resident = false, .offload_share = 0.5};
  EXPECT_EQ(chosen(workload, kUnlimited, request).saved_slots, 4U);
  request.order = WorkOrder::micro_batch_major;
  EXPECT_EQ(chosen(workload, kUnlimited, request).saved_slots, 2U);
}

TEST(ChooseOffload, RefusesTiles) {
  RandomCases cases(property_seed());
  const Workload workload = cases.tiled_workload();
  try {
    (void)choose_placement(workload, kUnlimited, {.keep = true, .offload = true});
    FAIL() << "tiles were placed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_NE(std::string(error.what()).find("stay on the device"), std::string::npos)
        << error.what();
  }
}

TEST(ChooseOffloadProperty, FitsAndCanBeBuilt) {
  RandomCases cases(property_seed());
  int placed = 0, away = 0;
  for (int i = 0; i < 600; ++i) {
    Workload workload = cases.workload();
    workload.micro_batches += 3;
    PlacementRequest request = random_request(cases);
    request.keep = request.offload = true;
    if (cases.maybe()) request.offload_to = Tier::nvme;
    const Budgets budgets{Bytes{cases.between(0, 1'000'000)}, Bytes{cases.between(0, 1'500'000)},
                          kPlenty};
    const auto choice = choose_placement(workload, budgets, request);
    const auto* placement = std::get_if<Placement>(&choice);
    if (placement == nullptr) continue;
    ++placed;
    away += offloaded_saved_activations(workload, *placement) > Bytes{} ? 1 : 0;
    expect_honoured(workload, *placement, budgets, request);
    EXPECT_EQ(bytes_moved(build_training_step(workload, *placement), kSaveActivations),
              saved_activations_traffic(workload, *placement).saved);
    EXPECT_TRUE(!placement->any_saved(Tier::nvme) || request.offload_to == Tier::nvme);
    EXPECT_TRUE(!placement->any_saved(Tier::host) || request.offload_to == Tier::host);
    (void)build_evaluation(workload, *placement);
  }
  EXPECT_GT(placed, 100);
  EXPECT_GT(away, 20);
}

}  // namespace
}  // namespace spillway::plan::choose_offload_test
