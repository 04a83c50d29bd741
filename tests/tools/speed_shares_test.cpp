// Shares of plan and peak, by hand.
#include "tools/cli/speed_shares.hpp"

#include <gtest/gtest.h>

#include "tests/plan/step_workloads.hpp"

namespace spillway::cli::speed_shares_test {
namespace {

TEST(SpeedShares, AreThoseOfPlanAndPeak) {
  engine::Planned planned;
  planned.workload = plan::small_workload();
  planned.workload.tokens = 1000;
  planned.workload.rounds = 8;
  planned.options.compute = DType::bf16;
  planned.prediction.step_seconds = 0.9;
  const plan::StepPlan step;
  engine::TrainPlan train{.plan = planned, .step = step, .device_name = "host"};
  EXPECT_EQ(SpeedShares(train).text(1.0), "90% of plan");
  // 8000 tokens of 50 GFLOPs in 1 s: 400 of the data sheet's 989.4 TFLOP/s.
  train.device_name = "NVIDIA H100 80GB HBM3";
  train.flops_per_token = 50e9;
  EXPECT_EQ(SpeedShares(train).text(1.0), "90% of plan, 40% of peak");
  EXPECT_EQ(SpeedShares(train).text(2.0), "45% of plan, 20% of peak");
  // Two ranks have two GPUs, and a step has the tokens of both.
  planned.workload.replicas.count = 2;
  EXPECT_EQ(SpeedShares(train).text(1.0), "90% of plan, 40% of peak");
}

}  // namespace
}  // namespace spillway::cli::speed_shares_test
