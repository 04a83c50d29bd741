// A kept checkpoint looks like one only when all of it is there.
#include "runtime/engine/run/kept_checkpoints.hpp"

#include <gtest/gtest.h>

#include "runtime/engine/run/reader.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine {
namespace {

class KeptCheckpointsOf : public testing::TestWithParam<config::StateHome> {};

TEST_P(KeptCheckpointsOf, HaveTheirManifestOnlyOnceTheirStateIsWhole) {
  TrainingHarness harness(tiny_llama());
  config::TrainOptions options = tiny_options();
  options.state_home = GetParam();
  const RunDirectory run(harness.new_run());
  const RunConfig config{
      .id = RunId{{1, 2}}, .model = harness.config(), .options = options, .data = "data"};
  const auto trainer = harness.make(options, run.root());
  Outcome outcome;
  harness.steps(*trainer, options, 2, outcome);
  KeptCheckpoints kept(run, config.id, 2, 1);
  ASSERT_TRUE(kept.due(2));
  kept.start(*trainer);
  const RunDirectory checkpoint(run.checkpoints() / "step-2");
  EXPECT_FALSE(kept.finish(*trainer, config)) << "the copy is not over";
  EXPECT_FALSE(checkpoint.exists()) << "killed now, it would pass as a checkpoint";
  EXPECT_TRUE(KeptCheckpoints::steps(run).empty());
  harness.steps(*trainer, options, 1, outcome);
  EXPECT_FALSE(checkpoint.exists());
  const auto saved = kept.finish(*trainer, config);
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->step, 2U);
  EXPECT_EQ(RunReader(checkpoint.root()).state().step, 2U);
  EXPECT_EQ(KeptCheckpoints::steps(run), std::vector<std::uint64_t>{2});
}

INSTANTIATE_TEST_SUITE_P(Tiers, KeptCheckpointsOf,
                         testing::Values(config::StateHome::nvme, config::StateHome::host,
                                         config::StateHome::device),
                         [](const auto& home) -> std::string {
                           if (home.param == config::StateHome::nvme) return "nvme";
                           return home.param == config::StateHome::host ? "host" : "device";
                         });

}  // namespace
}  // namespace spillway::engine
