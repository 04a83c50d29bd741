// Steps of stages that decide their updates early, and hear later that gradients were not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>

#include "tests/engine/ranks_harness.hpp"

namespace spillway::engine::late_judgement_test {
namespace {

/// Masters with which every gradient is not a number.
class NoNumbers final : public model::ParameterSource {
 public:
  void read(BlockIndex /*block*/, ElementCount /*first*/, std::span<float> target) const override {
    std::ranges::fill(target, std::numeric_limits<float>::quiet_NaN());
  }
};

TEST(LateJudgement, CountsSkippedStepsOnceStagesMeet) {
  RanksHarness harness(tiny_llama(2));
  const Job job{
      .replicas = {.sums = plan::SumOrder::fixed},
      .adjust = [](config::TrainOptions& options) { options.gradient_clipping = 0; },
      .pipeline = {
          .stages = 2, .schedule = config::PipelineSchedule::pipedream_2bw, .meet_every = 4}};
  comm::ThreadGroup(2).run([&](comm::Communicator& self) {
    config::TrainOptions options = options_of_job(job);
    RankOfJob rank(job, self, options);
    options.commits = false;
    const auto trainer = harness.make_rank(options, {}, rank);
    trainer->cycle().initialize(NoNumbers());
    const data::Sampler sampler = harness.sampler(options);
    for (const std::uint64_t skipped : {0U, 0U, 0U, 4U}) {
      (void)trainer->step(harness.tokens(), sampler);
      EXPECT_EQ(trainer->state().skipped, skipped);
      EXPECT_EQ(trainer->state().skipped_in_a_row, skipped);
    }
    EXPECT_EQ(trainer->state().step, 4U);
  });
}

}  // namespace
}  // namespace spillway::engine::late_judgement_test
