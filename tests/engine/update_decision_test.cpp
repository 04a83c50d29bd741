// Decisions of stages that do not know the norm of all stages yet.
#include "runtime/engine/training/update_decision.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace spillway::engine::update_decision_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

config::TrainOptions without_clipping() {
  config::TrainOptions options;
  options.compute = DType::bf16;
  options.gradient_clipping = 0;
  return options;
}

plan::Workload stage_of(std::uint32_t stages, std::uint32_t rounds) {
  plan::Workload workload;
  workload.stage.count = stages;
  workload.stale.ages = {1};
  workload.rounds = rounds;
  return workload;
}

// Of p stages and m rounds in a step, 2/3 (p - 1) / m of each step are 1 % of so many.
TEST(StepsOfSums, CostOnePercentWhereTheUpdateNeedsNoNorm) {
  ASSERT_TRUE(stage_of(4, 1).stale.stays_full());
  EXPECT_EQ(steps_of_sums(without_clipping(), stage_of(4, 1)), 201U);
  EXPECT_EQ(steps_of_sums(without_clipping(), stage_of(4, 8)), 26U);
  EXPECT_EQ(steps_of_sums(without_clipping(), stage_of(2, 512)), 1U);
  config::TrainOptions options = without_clipping();
  options.pipeline.meet_every = 7;
  EXPECT_EQ(steps_of_sums(options, stage_of(4, 8)), 7U);
  EXPECT_EQ(steps_of_sums(options, plan::Workload{}), 1U);
  options.compute = DType::fp16;
  EXPECT_EQ(steps_of_sums(options, stage_of(4, 8)), 1U);
  options = without_clipping();
  options.gradient_clipping = 1;
  EXPECT_EQ(steps_of_sums(options, stage_of(4, 8)), 1U);
}

TEST(EarlyDecision, IsThatOfAStepWhoseNormIsKnown) {
  const config::TrainOptions options = without_clipping();
  TrainingState early, late;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    StepResult result{.step = step};
    PendingUpdate update;
    decide_early(options, early, result, 25, update);
    StepResult expected{.step = step, .grad_norm = 5};
    PendingUpdate expected_update;
    decide_update(options, late, expected, expected_update);
    EXPECT_TRUE(update.pending);
    EXPECT_EQ(result.lr, expected.lr);
    for (std::size_t group = 0; group < kNativeGroups; ++group) {
      EXPECT_EQ(update.groups[group].t, expected_update.groups[group].t);
      EXPECT_EQ(update.groups[group].step_size, expected_update.groups[group].step_size);
      EXPECT_EQ(update.groups[group].gradient_scale, 1);
    }
    result.grad_norm = 5;
    judge_late(options, early, result);
    EXPECT_EQ(early, late);
  }
}

TEST(EarlyDecision, SkipsOnTheStageWhoseGradientIsNotFiniteAndIsJudgedOnAll) {
  const config::TrainOptions options = without_clipping();
  TrainingState hit, spared;
  for (std::uint64_t step = 1; step <= 10; ++step) {
    StepResult of_hit{.step = step};
    StepResult of_spared{.step = step};
    PendingUpdate update;
    decide_early(options, hit, of_hit, kInfinity, update);
    EXPECT_FALSE(update.pending);
    decide_early(options, spared, of_spared, 25, update);
    EXPECT_TRUE(update.pending);
    EXPECT_EQ(hit, spared) << "a commit says the same on all stages";
    for (auto* result : {&of_hit, &of_spared}) {
      result->grad_norm = kInfinity;
      judge_late(options, result == &of_hit ? hit : spared, *result);
      EXPECT_TRUE(result->skipped);
      EXPECT_EQ(result->diverged.empty(), step < 10);
    }
    EXPECT_EQ(hit, spared);
  }
  EXPECT_EQ(hit.skipped, 10U);
}

}  // namespace
}  // namespace spillway::engine::update_decision_test
