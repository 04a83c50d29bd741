#include "runtime/plan/predict/simulator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/theory.hpp"

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
  profile.cpu_shares_gpu = true;
  EXPECT_DOUBLE_EQ(simulate(cores, profile).ops[0].end, 6);
  EXPECT_DOUBLE_EQ(simulate(cores, profile).ops[1].end, 9);
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
  profile.cpu_shares_gpu = true;
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

// ---- Agreement with ZeRO-Infinity's efficiency --------------------------------------------------

struct Layers {
  double intensity = 0;  ///< FLOPs per byte
  std::uint64_t bytes_per_layer = 1'000'000'000;
  std::uint32_t count = 24;
};

/// Each layer is brought up and then computed; with `overlap` the next one comes up meanwhile.
StepPlan layer_plan(const Layers& layers, bool overlap) {
  StepPlan plan;
  OpIndex last = 0;
  for (std::uint32_t layer = 0; layer < layers.count; ++layer) {
    const bool waits = !overlap && layer > 0;
    const OpIndex load = append(plan, on(Lane::h2d, layers.bytes_per_layer),
                                waits ? std::vector<OpIndex>{last} : std::vector<OpIndex>{});
    const double flops = layers.intensity * static_cast<double>(layers.bytes_per_layer);
    last = append(plan, on_gpu(flops), {load});
  }
  return plan;
}

class SimulatedEfficiency : public testing::TestWithParam<double> {};

TEST_P(SimulatedEfficiency, AgreesWithZeroInfinity) {
  MachineProfile profile;
  profile.gpu_flops = 70e12;
  profile.h2d = GetParam() * 1e9;
  for (const double batch : {1.0, 2.0, 16.0}) {
    const Layers layers{.intensity = parameter_intensity({.batch = batch, .sequence = 1024})};
    const MovedWork work{.flops_per_byte = layers.intensity,
                         .bytes_per_second = profile.h2d,
                         .peak_flops = profile.gpu_flops};
    const Prediction serial = simulate(layer_plan(layers, false), profile);
    EXPECT_NEAR(serial[Lane::gpu].busy / serial.step_seconds, efficiency_without_overlap(work),
                1e-12);

    // Pipelined: everything but the fill (the first load) or the drain (the last layer) is hidden.
    const Prediction piped = simulate(layer_plan(layers, true), profile);
    const double ideal = efficiency_with_overlap(work);
    const double efficiency = piped[Lane::gpu].busy / piped.step_seconds;
    EXPECT_LE(efficiency, ideal + 1e-12);
    EXPECT_GE(efficiency, ideal * layers.count / (layers.count + 1) - 1e-12);
    EXPECT_EQ(piped.bounding, ideal < 1 ? Lane::h2d : Lane::gpu);

    // Every lane free: no op waits for another lane, so the slower lane is the step.
    StepPlan free = layer_plan(layers, true);
    for (Op& op : free.ops) op.dependency_count = 0;
    const Prediction perfect = simulate(free, profile);
    EXPECT_NEAR(perfect[Lane::gpu].busy / perfect.step_seconds, ideal, 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Bandwidths, SimulatedEfficiency,
                         testing::Values(1, 3, 12, 50, 70, 280, 1500));

}  // namespace
}  // namespace spillway::plan::simulator_test
