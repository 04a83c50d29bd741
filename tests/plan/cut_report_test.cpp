#include "runtime/plan/search/cut_report.hpp"

#include <gtest/gtest.h>

#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::cut_report_test {
namespace {

MachineProfile machine() {
  MachineProfile profile;
  profile.gpu_flops = 1e9;
  profile.h2d = profile.d2h = 1e7;
  profile.gpu_update = profile.nvme_read = profile.nvme_write = 1e9;
  profile.update = 1e7;  // so slow that the host had better update nothing
  return profile;
}

struct Reported {
  PlannedStep step;
  std::vector<CutReport> cuts;
};

Reported reported(const Workload& workload, const Budgets& budgets,
                  const PlacementRequest& request) {
  const Placement first = chosen(workload, budgets, request);
  const PlannedStep step = fastest_placement(workload, budgets, request, machine(), first);
  return {step, report_cuts(workload, budgets, request, machine(), step)};
}

/// The placement with another cut of all blocks that are cut like the reported ones.
Placement with(const Workload& workload, const Placement& placement, const CutReport& report) {
  Placement other = placement;
  for (std::size_t b = 0; b < other.blocks.size(); ++b) {
    const bool ends = b == 0 || b + 1 == workload.blocks.size();
    if (ends == (report.kind == "layers") || !(other.blocks[b] == report.cut)) continue;
    if (ends && (b == 0) != (report.kind == "embedding")) continue;
    other.blocks[b] = report.next->cut;
  }
  return other;
}

TEST(CutReport, SaysHowMuchIsMissingForTheNextBest) {
  const Workload workload = small_workload();
  Budgets budgets = kUnlimited;
  const PlacementRequest streamed{.state = Tier::host, .resident = false, .keep = false};
  budgets.device = needed(workload, chosen(workload, kUnlimited, streamed), Tier::device);
  const auto [step, cuts] = reported(workload, budgets, {.activations = Tier::device});
  ASSERT_GE(cuts.size(), 3U);
  int lacking = 0;
  for (const CutReport& report : cuts) {
    ASSERT_TRUE(report.next.has_value());
    if (!report.next->lacks || report.next->cut.saved == Tier::host) continue;
    ++lacking;
    EXPECT_EQ(report.next->lacks->tier, Tier::device);
    EXPECT_EQ(report.next->lacks->budget, budgets.device);
    EXPECT_EQ(report.next->lacks->needed,
              needed(workload, with(workload, step.placement, report), Tier::device));
  }
  EXPECT_GT(lacking, 0);
}

TEST(CutReport, SaysWhichLaneHasMoreToDo) {
  const Workload workload = small_workload();
  // The next best of everything on the device moves something over the slow link.
  const auto [step, cuts] = reported(workload, kUnlimited, {.activations = Tier::device});
  ASSERT_EQ(cuts.size(), 3U);
  EXPECT_EQ(cuts[0].kind, "embedding");
  EXPECT_EQ(cuts[1].kind, "layers");
  EXPECT_EQ(cuts[1].blocks, 2U);
  EXPECT_EQ(cuts[2].kind, "head");
  for (const CutReport& report : cuts) {
    EXPECT_EQ(report.cut.state, Tier::device);
    EXPECT_EQ(report.link, Bytes{});
  }
  const NextBest& head = cuts[2].next.value();
  ASSERT_FALSE(head.lacks.has_value());
  EXPECT_EQ(head.cut.updated_by(), Lane::cpu);
  EXPECT_GT(head.step_seconds, step.prediction.step_seconds);
  const Prediction other =
      simulate(build_training_step(workload, with(workload, step.placement, cuts[2])), machine());
  EXPECT_EQ(head.step_seconds, other.step_seconds);
  const auto lane = static_cast<std::size_t>(head.busier);
  EXPECT_EQ(head.busier_seconds, other.lanes[lane].busy - step.prediction.lanes[lane].busy);
}

TEST(CutReportProperty, CoversEveryBlockOnceAndStaysWithinTheRequest) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    const Workload workload = i % 3 == 0 ? cases.tiled_workload() : cases.workload();
    PlacementRequest request = random_request(cases);
    if (workload.operator_tiles) request.resident.reset();
    const auto [step, cuts] = reported(workload, kUnlimited, request);
    std::uint32_t blocks = 0;
    Bytes link;
    for (const CutReport& report : cuts) {
      blocks += report.blocks;
      link += report.link;
      if (!report.next) continue;
      const BlockCut& next = report.next->cut;
      EXPECT_FALSE(next == report.cut);
      EXPECT_TRUE(is_admissible(workload, next));
      EXPECT_EQ(next.state, request.state.value_or(next.state));
      EXPECT_EQ(next.resident(), request.resident.value_or(next.resident()));
    }
    EXPECT_EQ(blocks, workload.blocks.size());
    if (step.placement.boundary_slots > 0) continue;
    Bytes copied;
    for (const Op& op : build_training_step(workload, step.placement).ops) {
      if (op.lane == Lane::h2d || op.lane == Lane::d2h) copied += op.bytes;
    }
    EXPECT_EQ(link, copied);
  }
}

}  // namespace
}  // namespace spillway::plan::cut_report_test
