// The choice between placements that fit: by the simulator, within what the user left open.
#include "runtime/plan/fastest.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/plan/step_builder.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan {
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
  return profile;
}

TEST(FastestPlacement, MakesParametersResidentBeforeItKeepsActivationsOverASlowLink) {
  const Workload workload = even_workload();
  const PlacementRequest request{.state = Tier::host, .activations = Tier::device, .prefetch = 0};
  Budgets budgets = kUnlimited;
  PlacementRequest resident = request;
  resident.resident = true;
  resident.keep = false;
  budgets.device = needed(workload, chosen(workload, kUnlimited, resident), Tier::device);
  const Placement first = chosen(workload, budgets, request);
  ASSERT_TRUE(first.blocks[2].keep);
  ASSERT_TRUE(first.any_streamed());

  MachineProfile machine = fast_machine();
  EXPECT_EQ(fastest_placement(workload, budgets, request, machine, first).placement, first);
  machine.h2d = 1e5;
  const PlannedStep step = fastest_placement(workload, budgets, request, machine, first);
  EXPECT_FALSE(step.placement.any_streamed());
  EXPECT_LT(step.prediction.step_seconds,
            simulate(build_training_step(workload, first), machine).step_seconds);
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

TEST(FastestPlacementProperty, IsAPlacementForTheRequestAndNoSlowerThanTheFirst) {
  RandomCases cases(property_seed());
  int faster = 0, spread = 0;
  for (int i = 0; i < 400; ++i) {
    const Workload workload = i % 4 == 0 ? cases.tiled_workload() : cases.workload();
    PlacementRequest request = random_request(cases);
    if (workload.tiled) {
      request.activations.reset();
      request.resident.reset();  // the vectors always are
    }
    const Budgets budgets{Bytes{cases.between(0, 1'500'000)}, Bytes{cases.between(0, 1'500'000)},
                          kPlenty};
    const auto choice = choose_placement(workload, budgets, request);
    const auto* first = std::get_if<Placement>(&choice);
    if (first == nullptr) continue;
    MachineProfile machine = fast_machine();
    machine.h2d = machine.d2h = static_cast<double>(cases.between(1, 1000)) * 1e5;
    machine.update = static_cast<double>(cases.between(1, 1000)) * 1e6;
    if (cases.maybe()) machine.gpu_update = static_cast<double>(cases.between(1, 1000)) * 1e7;
    const PlannedStep step = fastest_placement(workload, budgets, request, machine, *first);
    expect_honoured(workload, step.placement, budgets, request);
    expect_correct({workload, step.placement});
    spread += std::ranges::any_of(step.placement.blocks, &BlockPlacement::offload);
    const StepPlan plan = build_training_step(workload, step.placement);
    EXPECT_EQ(step.prediction.step_seconds, simulate(plan, machine).step_seconds);
    const double before = simulate(build_training_step(workload, *first), machine).step_seconds;
    if (step.placement != *first) {
      EXPECT_LT(step.prediction.step_seconds, 0.99 * before);
      ++faster;
    }
  }
  EXPECT_GT(faster, 5);
  EXPECT_GT(spread, 0);
}

}  // namespace
}  // namespace spillway::plan
