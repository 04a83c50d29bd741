// Where gradients of rounds are summed.
#include <gtest/gtest.h>

#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::choose_sums_test {
namespace {

TEST(Choose, SumsRoundsOnTheDeviceInWhatIsLeftOfIt) {
  Workload workload = small_workload();
  workload.rounds = 2;
  PlacementRequest request{.state = Tier::host, .sums = false};
  const Placement none = chosen(workload, kUnlimited, request);
  EXPECT_TRUE(all_blocks(
      none, [](const BlockCut& b) { return b.resident() && b.gradients == Tier::host; }));
  request.sums.reset();
  Budgets budgets = kUnlimited;
  // Sums are 4 bytes a parameter, and the smallest block has one leaf of them.
  for (const std::uint64_t leaves : {0U, 1U, 3U, 8U}) {
    budgets.device = needed(workload, none, Tier::device) + Bytes{leaves * kLeafParameters * 4};
    const Placement placement = chosen(workload, budgets, request);
    EXPECT_TRUE(all_blocks(placement, [](const BlockCut& b) { return b.resident(); }));
    std::uint64_t summed = 0;
    for (std::size_t b = 0; b < workload.blocks.size(); ++b) {
      if (placement.blocks[b].gradients == Tier::device)
        summed += workload.blocks[b].padded_parameters.value();
    }
    EXPECT_EQ(summed, leaves * kLeafParameters);
  }
  request.sums = true;
  budgets.device -= Bytes{1};
  const Placement all = chosen(workload, budgets, request);
  EXPECT_TRUE(all_blocks(all, [](const BlockCut& b) { return b.gradients == Tier::device; }));
  EXPECT_FALSE(all_blocks(all, [](const BlockCut& b) { return b.resident(); }));
  workload.rounds = 1;
  EXPECT_TRUE(all_blocks(chosen(workload, kUnlimited, request),
                         [](const BlockCut& b) { return b.gradients == Tier::host; }));
}

}  // namespace
}  // namespace spillway::plan::choose_sums_test
