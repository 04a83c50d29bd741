// Many ranks train as one: ranks that are threads of this process, on the host backend.
#include <gtest/gtest.h>

#include "tests/engine/ranks_harness.hpp"

namespace spillway::engine {
namespace {

class Ranks : public testing::TestWithParam<std::uint32_t> {};

TEST_P(Ranks, HaveTheBitsOfOneInFixedOrder) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(1)}) {
    RanksHarness harness(config);
    const auto bf16 = [](config::TrainOptions& options) {
      options.compute = DType::bf16;
      options.state_format = StateFormat::split;
    };
    const Outcome one =
        harness.train_job({.ranks = {.sums = plan::SumOrder::fixed}, .adjust = bf16}).outcome;
    for (const plan::Sharding sharding : kShardings) {
      const JobOutcome job = harness.train_job(
          {.ranks = {.count = GetParam(), .sharding = sharding, .sums = plan::SumOrder::fixed},
           .adjust = bf16});
      EXPECT_TRUE(job.outcome == one) << static_cast<int>(sharding);
      EXPECT_EQ(job.sent, job.planned);
    }
  }
}

TEST_P(Ranks, HaveEqualLossesInEveryStage) {
  RanksHarness harness(tiny_gpt2(2));
  const Outcome one = harness.train_job({}).outcome;
  std::optional<Outcome> first;
  for (const plan::Sharding sharding : kShardings) {
    const JobOutcome job =
        harness.train_job({.ranks = {.count = GetParam(), .sharding = sharding}});
    if (!first) first = job.outcome;
    EXPECT_TRUE(job.outcome == *first) << static_cast<int>(sharding);
    EXPECT_EQ(job.sent, job.planned);
    // Sums of 24 micro-batches in another order: each of fp32's roundings is 6e-8.
    for (std::size_t i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(job.outcome.losses[i], one.losses[i], 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, Ranks, testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace spillway::engine
