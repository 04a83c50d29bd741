// The simulator against a reference that steps time, and against its own books.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/plan/predict/simulator.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::simulator_property_test {
namespace {

double sum_of_critical(const Prediction& prediction) {
  return std::accumulate(prediction.lanes.begin(), prediction.lanes.end(), 0.0,
                         [](double sum, const LaneUse& use) { return sum + use.critical; });
}

struct Reference {
  std::vector<OpTiming> ops;
  double step_seconds = 0;
};

/// The rules of simulator.hpp, told by advancing every lane by `tick`. Wrong by at most a tick for
/// each event before.
Reference step_time(const StepPlan& plan, const MachineProfile& profile, double tick) {
  Reference result;
  result.ops.resize(plan.ops.size());
  std::vector<double> overhead(plan.ops.size(), profile.op_overhead_seconds);
  std::vector<double> work;
  for (const Op& op : plan.ops) work.push_back(work_seconds(profile, op));
  std::vector<int> state(plan.ops.size(), 0);  // 0 waiting, 1 running, 2 complete
  std::size_t complete = 0;
  for (double now = 0; complete < plan.ops.size(); now += tick) {
    for (OpIndex i = 0; i < plan.ops.size(); ++i) {
      if (state[i] != 0) continue;
      bool ready = true;
      for (OpIndex j = 0; j < i; ++j) {
        if (plan.ops[j].lane == plan.ops[i].lane) ready = ready && state[j] == 2;
      }
      for (const OpIndex j : plan.dependencies_of(plan.ops[i])) ready = ready && state[j] == 2;
      if (!ready) continue;
      state[i] = 1;
      result.ops[i].start = now;
    }
    const auto works = [&](Lane lane) {
      for (OpIndex i = 0; i < plan.ops.size(); ++i) {
        if (plan.ops[i].lane == lane && state[i] == 1) return overhead[i] <= 0 && work[i] > 0;
      }
      return false;
    };
    const bool disk = works(Lane::nvme_read) && works(Lane::nvme_write);
    const bool link = works(Lane::h2d) && works(Lane::d2h);
    const std::map<Lane, double> shares{
        {Lane::gpu, profile.cores.compute},    {Lane::cpu, profile.cores.update},
        {Lane::h2d, profile.cores.copy},       {Lane::d2h, profile.cores.copy},
        {Lane::nvme_read, profile.cores.disk}, {Lane::nvme_write, profile.cores.disk}};
    double cores = 0;
    for (const auto& [lane, share] : shares) cores += works(lane) ? share : 0;
    for (OpIndex i = 0; i < plan.ops.size(); ++i) {
      if (state[i] != 1) continue;
      const Lane lane = plan.ops[i].lane;
      double speed = 1;
      if (disk && (lane == Lane::nvme_read || lane == Lane::nvme_write)) {
        speed = std::min(1.0, profile.nvme_combined / (profile.nvme_read + profile.nvme_write));
      }
      if (link && (lane == Lane::h2d || lane == Lane::d2h)) {
        speed = std::min(1.0, profile.h2d_d2h_combined / (profile.h2d + profile.d2h));
      }
      const auto share = shares.find(lane);
      if (share != shares.end() && works(lane) && cores > 1) speed /= cores;
      (overhead[i] > 0 ? overhead[i] : work[i]) -= tick * speed;
      if (overhead[i] <= 0 && work[i] <= 0) {
        state[i] = 2;
        ++complete;
        result.ops[i].end = result.step_seconds = now + tick;
      }
    }
  }
  return result;
}

StepPlan random_plan(std::mt19937_64& random, std::size_t count) {
  StepPlan plan;
  for (OpIndex i = 0; i < count; ++i) {
    std::vector<OpIndex> dependencies;
    for (OpIndex j = i > 6 ? i - 6 : 0; j < i; ++j) {
      if (random() % 5 == 0) dependencies.push_back(j);
    }
    const auto lane = static_cast<Lane>(random() % kMachineLanes);
    const std::uint64_t amount = random() % 12;
    append(plan, {.lane = lane, .bytes = amount, .flops = lane == Lane::gpu ? double(amount) : 0.0},
           dependencies);
  }
  return plan;
}

MachineProfile random_machine(std::mt19937_64& random) {
  const auto draw = [&random](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  MachineProfile profile;
  profile.gpu_flops = draw(1, 4);
  profile.h2d = draw(1, 4);
  profile.d2h = draw(1, 4);
  profile.h2d_d2h_combined = draw(1, 8);
  profile.update = draw(1, 4);
  profile.net = draw(1, 4);
  profile.nvme_read = draw(1, 4);
  profile.nvme_write = draw(1, 4);
  profile.nvme_combined = draw(1, 8);
  profile.op_overhead_seconds = random() % 2 == 0 ? 0 : draw(0, 1);
  if (random() % 2 == 0) {
    profile.cores = {
        .compute = draw(0.5, 1), .update = draw(0, 1), .copy = draw(0, 1), .disk = draw(0, 1)};
  }
  return profile;
}

TEST(SimulatorProperty, AgreesWithSteppingTimeThroughRandomPlans) {
  std::mt19937_64 random(property_seed());
  constexpr double kTick = 1.0 / 1024;
  for (int trial = 0; trial < 100; ++trial) {
    SCOPED_TRACE(trial);
    const std::size_t count = 1 + random() % 20;
    const StepPlan plan = random_plan(random, count);
    const MachineProfile profile = random_machine(random);
    const Prediction prediction = simulate(plan, profile);
    const Reference reference = step_time(plan, profile, kTick);
    // Each op's overhead and work round up to a tick, and a late partner delays: two for every op.
    const double tolerance = kTick * 4 * static_cast<double>(count + 1);
    EXPECT_NEAR(prediction.step_seconds, reference.step_seconds, tolerance);
    for (OpIndex i = 0; i < count; ++i) {
      EXPECT_NEAR(prediction.ops[i].start, reference.ops[i].start, tolerance) << "op " << i;
      EXPECT_NEAR(prediction.ops[i].end, reference.ops[i].end, tolerance) << "op " << i;
    }
  }
}

TEST(SimulatorProperty, AccountsForEverySecond) {
  std::mt19937_64 random(property_seed());
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    const StepPlan plan = random_plan(random, random() % 200);
    const Prediction prediction = simulate(plan, random_machine(random));
    const double step = prediction.step_seconds;
    EXPECT_NEAR(sum_of_critical(prediction), step, 1e-9 * (1 + step));
    EXPECT_NEAR(prediction.gpu_idle + prediction[Lane::gpu].busy, step, 1e-9 * (1 + step));
    double exposed = 0;
    for (std::size_t lane = 0; lane < kMachineLanes; ++lane) {
      const LaneUse& use = prediction.lanes[lane];
      double busy = 0;
      for (OpIndex i = 0; i < plan.ops.size(); ++i) {
        if (static_cast<std::size_t>(plan.ops[i].lane) != lane) continue;
        busy += prediction.ops[i].end - prediction.ops[i].start;
      }
      EXPECT_NEAR(use.busy, busy, 1e-9 * (1 + busy));
      EXPECT_LE(use.exposed, use.busy);
      EXPECT_LE(use.exposed, prediction.gpu_idle + 1e-9);
      EXPECT_LE(use.busy, step + 1e-9);
      exposed += use.exposed;
    }
    // Work never stops before the end, so idle time of the gpu is exposed time of some lane.
    EXPECT_GE(exposed, prediction.gpu_idle - 1e-9 * (1 + step));
    const Prediction again = simulate(plan, random_machine(random));
    EXPECT_EQ(again.ops.size(), prediction.ops.size());
  }
}

TEST(SimulatorProperty, GivesUpExactlyThePlansThatTakeLonger) {
  std::mt19937_64 random(property_seed());
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    const StepPlan plan = random_plan(random, 1 + random() % 200);
    const MachineProfile profile = random_machine(random);
    const double seconds = simulate(plan, profile).step_seconds;
    for (const double share : {1.0, 1 + 1e-12, 1.5}) {
      const auto prediction = simulate_within(plan, profile, share * seconds);
      ASSERT_TRUE(prediction.has_value()) << share;
      EXPECT_EQ(prediction->step_seconds, seconds);
    }
    if (seconds == 0) continue;
    for (const double share : {0.0, 0.5, 0.9, 1 - 1e-12}) {
      EXPECT_FALSE(simulate_within(plan, profile, share * seconds).has_value()) << share;
    }
  }
}

TEST(Simulator, GivesTheSameBitsEveryTime) {
  std::mt19937_64 random(7);
  const StepPlan plan = random_plan(random, 500);
  const MachineProfile profile = random_machine(random);
  const Prediction first = simulate(plan, profile);
  const Prediction second = simulate(plan, profile);
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    EXPECT_EQ(first.ops[i].start, second.ops[i].start);
    EXPECT_EQ(first.ops[i].end, second.ops[i].end);
  }
}

}  // namespace
}  // namespace spillway::plan::simulator_property_test
