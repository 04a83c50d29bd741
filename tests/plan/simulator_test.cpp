#include "runtime/plan/predict/simulator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::simulator_test {
namespace {

/// Every rate 1, nothing shared, no overhead: bytes and FLOPs are seconds.
MachineProfile unit_machine() {
  MachineProfile profile;
  profile.gpu_flops = profile.h2d = profile.d2h = profile.update = 1;
  profile.net = profile.nvme_read = profile.nvme_write = 1;
  return profile;
}

OpSpec on_gpu(double seconds) { return {.lane = Lane::gpu, .flops = seconds}; }
OpSpec on(Lane lane, std::uint64_t seconds) { return {.lane = lane, .bytes = seconds}; }

TEST(Simulator, TakesNoTimeForAnEmptyPlan) {
  const Prediction prediction = simulate({}, {});
  EXPECT_EQ(prediction.step_seconds, 0);
  EXPECT_TRUE(prediction.ops.empty());
  EXPECT_EQ(prediction.bounding, Lane::gpu);
}

TEST(Simulator, TimesASingleOpOfEachLane) {
  MachineProfile profile;
  profile.gpu_flops = 2;
  profile.h2d = 4;
  profile.d2h = 5;
  profile.update = 8;
  profile.net = 40;
  profile.nvme_read = 10;
  profile.nvme_write = 20;
  profile.op_overhead_seconds = 0.5;
  const std::vector<std::pair<Lane, double>> expected{
      {Lane::gpu, 20}, {Lane::h2d, 10},      {Lane::d2h, 8},       {Lane::cpu, 5},
      {Lane::net, 1},  {Lane::nvme_read, 4}, {Lane::nvme_write, 2}};
  for (const auto& [lane, seconds] : expected) {
    StepPlan plan;
    append(plan, {.lane = lane, .bytes = 40, .flops = lane == Lane::gpu ? 40.0 : 0.0});
    const Prediction prediction = simulate(plan, profile);
    EXPECT_DOUBLE_EQ(prediction.step_seconds, seconds + 0.5);
    EXPECT_EQ(prediction.bounding, lane);
    EXPECT_DOUBLE_EQ(prediction[lane].busy, seconds + 0.5);
    EXPECT_DOUBLE_EQ(prediction[lane].exposed, lane == Lane::gpu ? 0 : seconds + 0.5);
    EXPECT_DOUBLE_EQ(prediction.gpu_idle, lane == Lane::gpu ? 0 : seconds + 0.5);
  }
}

TEST(Simulator, ChargesTheOverheadOfOpsWithoutWork) {
  StepPlan plan;
  append(plan, on(Lane::nvme_write, 0));
  append(plan, on_gpu(0), {0});
  EXPECT_EQ(simulate(plan, {}).step_seconds, 0);
  MachineProfile profile;
  profile.op_overhead_seconds = 3;
  EXPECT_DOUBLE_EQ(simulate(plan, profile).step_seconds, 6);
}

TEST(Simulator, ALaneThatHasWaitedIsWoken) {
  StepPlan plan;
  append(plan, on(Lane::h2d, 5));
  append(plan, on_gpu(1), {0});
  append(plan, on_gpu(1));
  MachineProfile profile = unit_machine();
  profile.wake_seconds = 2;
  const Prediction prediction = simulate(plan, profile);
  EXPECT_DOUBLE_EQ(prediction.ops[0].end, 5);  // there is no wait where the step begins
  EXPECT_DOUBLE_EQ(prediction.ops[1].end, 5 + 2 + 1);
  EXPECT_DOUBLE_EQ(prediction.ops[2].end, 9);
}

TEST(Simulator, ChargesChecksumsAndCommitsOfStateOnDisk) {
  MachineProfile profile = unit_machine();
  Op update;
  update.kind = OpKind::update;
  update.lane = Lane::cpu;
  update.bytes = Bytes{10};
  update.checksummed = Bytes{6};
  Op commit;
  commit.kind = OpKind::commit;
  commit.lane = Lane::nvme_write;
  EXPECT_DOUBLE_EQ(work_seconds(profile, update), 10);
  EXPECT_DOUBLE_EQ(work_seconds(profile, commit), 0);
  profile.disk = {.checksum = 2, .commit_seconds = 7};
  EXPECT_DOUBLE_EQ(work_seconds(profile, update), 10 + 3);
  EXPECT_DOUBLE_EQ(work_seconds(profile, commit), 7);
  profile.paces = {.compute = {}, .link = {}, .update = {.slow = 0.5}, .disk = {.slow = 0.25}};
  const MachineProfile slow = at_pace(profile, &Pace::slow);
  EXPECT_DOUBLE_EQ(work_seconds(slow, update), 2 * (10 + 3));
  EXPECT_DOUBLE_EQ(work_seconds(slow, commit), 4 * 7);
}

TEST(Simulator, GpuOpsTakeTheLongerOfFlopsAndMemory) {
  MachineProfile profile = unit_machine();
  const Op op = [] {
    Op made;
    made.lane = Lane::gpu;
    made.flops = 6;
    made.bytes = Bytes{40};
    return made;
  }();
  EXPECT_DOUBLE_EQ(work_seconds(profile, op), 6);  // memory of the device not measured
  profile.gpu_update = 4;
  EXPECT_DOUBLE_EQ(work_seconds(profile, op), 10);
  profile.gpu_update = 400;
  EXPECT_DOUBLE_EQ(work_seconds(profile, op), 6);
}

TEST(Simulator, KeepsLanesInListOrder) {
  StepPlan plan;
  append(plan, on(Lane::h2d, 5));
  append(plan, on_gpu(1), {0});
  append(plan, on_gpu(1));  // ready at once, but behind an op that waits
  const Prediction prediction = simulate(plan, unit_machine());
  EXPECT_DOUBLE_EQ(prediction.ops[1].start, 5);
  EXPECT_DOUBLE_EQ(prediction.ops[2].start, 6);
  EXPECT_DOUBLE_EQ(prediction.step_seconds, 7);
}

TEST(Simulator, SplitsTheStepIntoBusyExposedAndCritical) {
  // Load 4, compute 6 beside a second load 4, compute 1, then 3 of CPU that nothing hides.
  StepPlan plan;
  append(plan, on(Lane::h2d, 4));
  append(plan, on_gpu(6), {0});
  append(plan, on(Lane::h2d, 4));
  append(plan, on_gpu(1), {2});
  append(plan, on(Lane::cpu, 3), {3});
  const Prediction prediction = simulate(plan, unit_machine());
  EXPECT_DOUBLE_EQ(prediction.step_seconds, 14);
  EXPECT_DOUBLE_EQ(prediction[Lane::gpu].busy, 7);
  EXPECT_DOUBLE_EQ(prediction[Lane::h2d].busy, 8);
  EXPECT_DOUBLE_EQ(prediction[Lane::h2d].exposed, 4);
  EXPECT_DOUBLE_EQ(prediction[Lane::cpu].exposed, 3);
  EXPECT_DOUBLE_EQ(prediction.gpu_idle, 7);
  EXPECT_DOUBLE_EQ(prediction[Lane::h2d].critical, 4);
  EXPECT_DOUBLE_EQ(prediction[Lane::gpu].critical, 7);
  EXPECT_DOUBLE_EQ(prediction[Lane::cpu].critical, 3);
  EXPECT_EQ(prediction.bounding, Lane::gpu);
}

TEST(Simulator, LetsTheEarlierOfTheLanesThatEndTogetherBoundTheStep) {
  StepPlan plan;
  append(plan, on(Lane::cpu, 3));
  append(plan, on_gpu(3));
  const Prediction prediction = simulate(plan, unit_machine());
  EXPECT_EQ(prediction.bounding, Lane::gpu);
  EXPECT_DOUBLE_EQ(prediction[Lane::gpu].critical, 3);
  EXPECT_DOUBLE_EQ(prediction[Lane::cpu].critical, 0);
}

TEST(Simulator, DividesTheCombinedRateWhileBothDirectionsWork) {
  MachineProfile profile = unit_machine();
  profile.nvme_read = 6;
  profile.nvme_write = 4;
  profile.nvme_combined = 5;  // each runs at half its own rate beside the other
  StepPlan plan;
  append(plan, on(Lane::nvme_read, 12));   // 2 s alone
  append(plan, on(Lane::nvme_write, 12));  // 3 s alone
  const Prediction prediction = simulate(plan, profile);
  EXPECT_DOUBLE_EQ(prediction.ops[0].end, 4);  // 2 s of work at half speed
  EXPECT_DOUBLE_EQ(prediction.ops[1].end, 5);  // 2 s of work done by then, 1 s alone
}

TEST(Simulator, SharesTheLinkAndTheCoresLikewise) {
  MachineProfile profile = unit_machine();
  profile.h2d_d2h_combined = 1.5;
  StepPlan link;
  append(link, on(Lane::h2d, 3));
  append(link, on(Lane::d2h, 6));
  EXPECT_DOUBLE_EQ(simulate(link, profile).ops[0].end, 4);
  EXPECT_DOUBLE_EQ(simulate(link, profile).ops[1].end, 7);
  StepPlan cores;
  append(cores, on_gpu(3));
  append(cores, on(Lane::cpu, 6));
  EXPECT_DOUBLE_EQ(simulate(cores, profile).step_seconds, 6);
  profile.cores = {.compute = 1, .update = 1};
  EXPECT_DOUBLE_EQ(simulate(cores, profile).ops[0].end, 6);
  EXPECT_DOUBLE_EQ(simulate(cores, profile).ops[1].end, 9);
}

TEST(Simulator, DividesTheCoresOfAHostBackendByWhatLanesTakeOfThem) {
  MachineProfile profile = unit_machine();
  profile.cores = {.compute = 1, .update = 1, .copy = 0.5, .disk = 0.25};
  StepPlan plan;
  append(plan, on_gpu(4));
  append(plan, on(Lane::h2d, 2));
  append(plan, on(Lane::nvme_read, 1));
  append(plan, on(Lane::net, 5));
  const Prediction prediction = simulate(plan, profile);
  // 1.75 times the cores until the read ends, then 1.5 times until the copy does.
  EXPECT_DOUBLE_EQ(prediction.ops[2].end, 1.75);
  EXPECT_DOUBLE_EQ(prediction.ops[1].end, 1.75 + 1.5);
  EXPECT_DOUBLE_EQ(prediction.ops[0].end, 1.75 + 1.5 + 2);
  EXPECT_DOUBLE_EQ(prediction.ops[3].end, 5);
  profile.cores = {};
  EXPECT_DOUBLE_EQ(simulate(plan, profile).step_seconds, 5);
}

TEST(Simulator, PredictsAMachineAtThePaceOfAQuarterOfItsMeasurements) {
  MachineProfile profile = unit_machine();
  profile.paces = {.compute = {.fast = 2, .slow = 0.5},
                   .link = {.fast = 4, .slow = 0.25},
                   .update = {.fast = 5, .slow = 0.2},
                   .disk = {.fast = 8, .slow = 0.125}};
  const auto seconds = [](const OpSpec& op, const MachineProfile& machine) {
    StepPlan plan;
    append(plan, op);
    return simulate(plan, machine).step_seconds;
  };
  const MachineProfile fast = at_pace(profile, &Pace::fast);
  const MachineProfile slow = at_pace(profile, &Pace::slow);
  const std::pair<OpSpec, double> ops[] = {
      {on_gpu(40), 2},        {on(Lane::h2d, 40), 4},       {on(Lane::d2h, 40), 4},
      {on(Lane::cpu, 40), 5}, {on(Lane::nvme_read, 40), 8}, {on(Lane::nvme_write, 40), 8}};
  for (const auto& [op, pace] : ops) {
    EXPECT_DOUBLE_EQ(seconds(op, fast), 40 / pace) << name_of(op.lane);
    EXPECT_DOUBLE_EQ(seconds(op, slow), 40 * pace) << name_of(op.lane);
  }
}

TEST(Simulator, CombinedRateAboveTheSumSlowsNobody) {
  MachineProfile profile = unit_machine();
  profile.nvme_combined = 3;
  StepPlan plan;
  append(plan, on(Lane::nvme_read, 2));
  append(plan, on(Lane::nvme_write, 2));
  EXPECT_DOUBLE_EQ(simulate(plan, profile).step_seconds, 2);
}

TEST(Simulator, OverheadDisturbsNobody) {
  MachineProfile profile = unit_machine();
  profile.cores = {.compute = 1, .update = 1};
  profile.op_overhead_seconds = 1;
  StepPlan plan;
  append(plan, on_gpu(2));
  append(plan, on(Lane::cpu, 0));
  append(plan, on(Lane::cpu, 4));
  const Prediction prediction = simulate(plan, profile);
  EXPECT_DOUBLE_EQ(prediction.ops[1].end, 1);
  // gpu: overhead to 1, work alone to 2, half speed until 4; cpu works from 2: 1 done by 4, 3 left.
  EXPECT_DOUBLE_EQ(prediction.ops[0].end, 4);
  EXPECT_DOUBLE_EQ(prediction.ops[2].end, 7);
}

TEST(Simulator, RefusesPlansThatCannotRun) {
  StepPlan later;
  append(later, on_gpu(1), {1});
  append(later, on_gpu(1));
  EXPECT_THROW((void)simulate(later, unit_machine()), Error);
  StepPlan itself;
  append(itself, on_gpu(1), {0});
  EXPECT_THROW((void)simulate(itself, unit_machine()), Error);
  StepPlan beyond;
  append(beyond, on_gpu(1));
  beyond.ops[0].dependency_count = 1;
  EXPECT_THROW((void)simulate(beyond, unit_machine()), Error);
  StepPlan nowhere;
  append(nowhere, on(static_cast<Lane>(17), 1));
  EXPECT_THROW((void)simulate(nowhere, unit_machine()), Error);
  StepPlan unmeasured;
  append(unmeasured, on(Lane::nvme_read, 1));
  try {
    (void)simulate(unmeasured, {});
    FAIL() << "there is no disk rate";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("nvme_read"));
  }
}

/// Twenty-four layers are brought up, each then computed; with `overlap` the next one comes up
/// meanwhile.
StepPlan layer_plan(double flops_per_byte, bool overlap) {
  constexpr std::uint64_t kBytes = 1'000'000'000;
  StepPlan plan;
  OpIndex last = 0;
  for (std::uint32_t layer = 0; layer < 24; ++layer) {
    const bool waits = !overlap && layer > 0;
    const OpIndex load = append(plan, on(Lane::h2d, kBytes),
                                waits ? std::vector<OpIndex>{last} : std::vector<OpIndex>{});
    last = append(plan, on_gpu(flops_per_byte * static_cast<double>(kBytes)), {load});
  }
  return plan;
}

double efficiency(const Prediction& prediction) {
  return prediction[Lane::gpu].busy / prediction.step_seconds;
}

TEST(Simulator, AgreesWithThePublishedEfficiency) {
  const nlohmann::json golden = golden_json("zero_infinity_efficiency.json");
  for (const nlohmann::json& row : golden.at("rows")) {
    const double flops_per_byte = row.at("flops_per_byte");
    for (const auto& [gb_per_second, percent] : row.at("percent").items()) {
      MachineProfile profile;
      profile.gpu_flops = golden.at("peak_flops");
      profile.h2d = std::stod(gb_per_second) * 1e9;
      const double fed = flops_per_byte * profile.h2d;
      const double serial = efficiency(simulate(layer_plan(flops_per_byte, false), profile));
      EXPECT_NEAR(100 * serial, percent, 0.5000001 * row.at("digit").get<double>()) << row;
      EXPECT_NEAR(serial, fed / (fed + profile.gpu_flops), 1e-12);

      // Pipelined: everything but the fill (the first load) or the drain (the last layer) is
      // hidden.
      const double ideal = std::min(1.0, fed / profile.gpu_flops);
      const Prediction piped = simulate(layer_plan(flops_per_byte, true), profile);
      EXPECT_LE(efficiency(piped), ideal + 1e-12);
      EXPECT_GE(efficiency(piped), ideal * 24 / 25 - 1e-12);
      EXPECT_EQ(piped.bounding, ideal < 1 ? Lane::h2d : Lane::gpu);

      // Every lane free: no op waits for another lane, so the slower lane is the step.
      StepPlan free = layer_plan(flops_per_byte, true);
      for (Op& op : free.ops) op.dependency_count = 0;
      EXPECT_NEAR(efficiency(simulate(free, profile)), ideal, 1e-12);
    }
  }
}

}  // namespace
}  // namespace spillway::plan::simulator_test
