// The shape of a step that a configuration leaves open is the one that planning each of them by
// itself would choose, and every rank's.
#include "runtime/engine/prepare/step_shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/planner.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::step_shape_test {
namespace {

constexpr std::uint32_t kWindows = 16;

/// A machine with so much device memory that computes, and uploads over a slow link.
class SlowLink final : public PlanningMachine {
 public:
  explicit SlowLink(Bytes device) : device_(device) {}

  [[nodiscard]] plan::Budgets budgets(const config::TrainOptions& /*options*/,
                                      const plan::Workload& /*workload*/) override {
    return {.device = device_, .host = 1_GiB, .nvme = 1_GiB};
  }
  [[nodiscard]] plan::MachineProfile profile(const config::TrainOptions& options,
                                             const plan::Workload& whole,
                                             const plan::Budgets& /*budgets*/,
                                             const plan::Placement& /*fitting*/) override {
    EXPECT_EQ(whole.rounds, options.rounds);  // what is measured is the step that fits
    plan::MachineProfile profile;
    profile.gpu_flops = 1e10;
    profile.h2d = profile.d2h = 2e8;
    profile.update = 1e9;
    profile.net = profile.nvme_read = profile.nvme_write = 1e9;
    profile.op_overhead_seconds = 1e-5;
    return profile;
  }

 private:
  const Bytes device_;
};

const model::ModelConfig kModel = tiny_llama(4);

config::TrainOptions small_windows() {
  config::TrainOptions options = tiny_options();
  options.device = config::DeviceKind::host;
  options.context = 8;
  options.rounds = 1;
  resolve(options, kModel);
  // On the host, there would be room for those of every micro-batch.
  options.activations = config::StateHome::device;
  return options;
}

Planned plan_alone(const config::TrainOptions& options, Bytes device) {
  SlowLink machine(device);
  RankGroups alone;
  return plan_rank(kModel, options, {}, StageLayers::chosen, machine, alone,
                   [](const std::string&) {});
}

/// Plans every shape that divides the windows, each by itself, and returns those that fit.
std::vector<PricedShape> plan_all(config::TrainOptions options, Bytes device) {
  std::vector<PricedShape> all;
  for (std::uint32_t micro = kWindows; micro >= kWindows / 4; micro /= 2) {
    options.micro_batch = micro;
    options.gradient_accumulation_steps = kWindows / micro;
    for (options.rounds = 1; options.rounds <= kWindows / micro; ++options.rounds) {
      if (kWindows / micro % options.rounds != 0) continue;
      try {
        const double seconds = plan_alone(options, device).prediction.step_seconds;
        all.push_back({{options.rounds, micro, kWindows / micro}, seconds});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
      }
    }
  }
  return all;
}

/// Plans with an open shape whose micro-batch is at most that of the first of `all`.
Planned plan_open(Bytes device, const std::vector<PricedShape>& all) {
  config::TrainOptions options = small_windows();
  options.micro_batch = all.front().shape.micro_batch;
  options.gradient_accumulation_steps = all.front().shape.accumulation;
  options.automatic.rounds = options.automatic.micro_batch = true;
  return plan_alone(options, device);
}

TEST(ShapeOfAStep, IsOneOfTheFastestOfAllThatFit) {
  std::set<std::uint32_t> rounds;
  std::set<std::uint32_t> parts;
  for (const std::uint64_t kib : {378U, 737U, 1151U, 2807U, 3508U}) {
    SCOPED_TRACE(kib);
    const Bytes device{kib << 10};
    const std::vector<PricedShape> all = plan_all(small_windows(), device);
    if (all.empty()) continue;
    const Planned plan = plan_open(device, all);
    ASSERT_TRUE(plan.shape.has_value());
    EXPECT_EQ(plan.options.automatic, config::AutomaticOptions{});
    const auto [shape, seconds] = plan.shape->chosen;
    EXPECT_EQ(plan.prediction.step_seconds, seconds);
    EXPECT_EQ(plan.options.rounds, shape.rounds);
    EXPECT_EQ(plan.workload.rounds, shape.rounds);
    EXPECT_EQ(plan.options.micro_batch, shape.micro_batch);
    EXPECT_EQ(config::windows_of_step(plan.options), kWindows);
    for (const PricedShape& each : all) {
      EXPECT_LE(seconds, kWorthChanging * each.step_seconds) << to_text(*plan.shape);
      if (each.shape == shape) {
        EXPECT_EQ(seconds, each.step_seconds);
        continue;
      }
      ASSERT_TRUE(plan.shape->next.has_value());
      EXPECT_LE(plan.shape->next->step_seconds, kWorthChanging * each.step_seconds);
      if (each.shape == plan.shape->next->shape) {
        EXPECT_EQ(plan.shape->next->step_seconds, each.step_seconds);
      }
    }
    rounds.insert(shape.rounds);
    parts.insert(all.front().shape.micro_batch / shape.micro_batch);
  }
  EXPECT_GT(rounds.size(), 1U);  // memory decides
  EXPECT_GT(parts.size(), 1U);
}

TEST(ShapeOfAStep, IsOpenOnlyWhereThereIsAChoice) {
  config::TrainOptions options = small_windows();
  options.gradient_accumulation_steps = 4;
  EXPECT_FALSE(leaves_shape_open(options));
  options.automatic.rounds = true;
  EXPECT_TRUE(leaves_shape_open(options));
  config::TrainOptions other = options;
  other.sum_order = config::SumOrder::fixed;
  EXPECT_FALSE(leaves_shape_open(other));
  other = options;
  other.pipeline.stages = 2;
  EXPECT_FALSE(leaves_shape_open(other));
  other = options;
  other.gradient_accumulation_steps = 1;
  EXPECT_FALSE(leaves_shape_open(other));
  other.automatic.micro_batch = true;
  EXPECT_TRUE(leaves_shape_open(other));
  other.micro_batch = 1;
  EXPECT_FALSE(leaves_shape_open(other));
}

TEST(FirstRounds, FitTheBudgetsOfTheirOwnStep) {
  config::TrainOptions options = small_windows();
  options.gradient_accumulation_steps = 12;
  options.rounds = 1;
  const auto roomy_from = [](std::uint32_t rounds) {
    return [rounds](const config::TrainOptions& tried, const plan::Workload& step) {
      EXPECT_EQ(step.rounds, tried.rounds);
      const Bytes device = tried.rounds < rounds ? 1_KiB : 1_GiB;
      return plan::Budgets{.device = device, .host = 1_GiB, .nvme = 1_GiB};
    };
  };
  config::TrainOptions taken = options;
  EXPECT_EQ(take_first_rounds(taken, kModel, {}, roomy_from(4)).device, 1_GiB);
  EXPECT_EQ(taken.rounds, 4U);
  taken = options;
  EXPECT_EQ(take_first_rounds(taken, kModel, {}, roomy_from(13)).device, 1_KiB);
  EXPECT_EQ(taken.rounds, 1U);  // the refusal names what the options say
}

}  // namespace
}  // namespace spillway::engine::step_shape_test
