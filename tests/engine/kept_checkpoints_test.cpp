// A kept checkpoint looks like one only when all of it is there.
#include "runtime/engine/run/kept_checkpoints.hpp"

#include <gtest/gtest.h>

#include "runtime/engine/run/reader.hpp"
#include "tests/engine/ranks_harness.hpp"

namespace spillway::engine::kept_checkpoints_test {
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
  KeptCheckpoints kept(run, {.id = config.id, .save_every = 2, .keep = 1});
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

/// Four ranks that keep checkpoints of one job, a thread each.
class KeptByFour : public testing::Test {
 protected:
  static constexpr std::uint32_t kRanks = 4;

  /// What a test does between steps; each rank has its own.
  struct AsRank {
    KeptCheckpoints& kept;
    Trainer& trainer;
    const RunConfig& config;
    comm::Communicator& self;
    std::function<void()> step;

    void keep_step() const {
      ASSERT_TRUE(kept.due(trainer.state().step));
      kept.start(trainer);
      step();
    }
  };

  /// The threads of a job that begins anew on `run_`.
  void as_ranks(const std::function<void(const AsRank&)>& body) {
    const std::filesystem::path state = harness_.new_run();
    comm::ThreadGroup(kRanks).run([&](comm::Communicator& self) {
      const plan::Ranks ranks{.count = kRanks,
                              .rank = self.rank().value(),
                              .sharding = plan::Sharding::parameters,
                              .sums = plan::SumOrder::fixed};
      const config::TrainOptions options = options_of_ranks(ranks.count, ranks.sums);
      nvme_swap::StoreOptions store;
      store.directories = {state / std::to_string(ranks.rank)};
      std::filesystem::create_directories(store.directories[0]);
      const auto trainer = harness_.make_rank(options, store, {.job = self, .ranks = ranks});
      trainer->initialize(
          model::RandomInitializer(harness_.config(), trainer->layout(), options.seed));
      const RunConfig config{.id = RunId{{1, ranks.rank}},
                             .model = harness_.config(),
                             .options = options,
                             .data = "data"};
      KeptCheckpoints kept(
          run_, {.id = config.id,
                 .save_every = 2,
                 .keep = 1,
                 .part = {.ranks = kRanks, .rank = ranks.rank, .sharding = ranks.sharding},
                 .ranks = &self});
      const data::Sampler sampler = harness_.sampler(options);
      const auto step = [&] { trainer->step(harness_.tokens(), sampler); };
      for (int i = 0; i < 2; ++i) step();
      body({kept, *trainer, config, self, step});
    });
  }
  [[nodiscard]] std::filesystem::path checkpoint(int step) const {
    return run_.checkpoints() / ("step-" + std::to_string(step));
  }
  [[nodiscard]] std::vector<std::uint64_t> steps() const { return KeptCheckpoints::steps(run_); }

  RanksHarness harness_{tiny_gpt2(1)};
  RunDirectory run_{harness_.new_run()};
};

TEST_F(KeptByFour, AreContinuedByAnyNumberOfRanksWithTheBitsOfOne) {
  as_ranks([](const AsRank& rank) {
    rank.keep_step();
    ASSERT_TRUE(rank.kept.finish(rank.trainer, rank.config));
  });
  EXPECT_EQ(RunReader(checkpoint(2)).saved().grid().ranks(), kRanks);
  const plan::Ranks one{.sums = plan::SumOrder::fixed};
  const Outcome whole = harness_.train_job({.ranks = one}).outcome;
  for (const std::uint32_t count : {1U, 2U, 3U, 8U}) {
    const Outcome after = harness_
                              .train_job({.ranks = {.count = count,
                                                    .sharding = plan::Sharding::state,
                                                    .sums = plan::SumOrder::fixed},
                                          .steps = kSteps - 2,
                                          .from_run = checkpoint(2)})
                              .outcome;
    EXPECT_EQ(after.losses, std::vector(1, whole.losses.back())) << count;
    EXPECT_EQ(after.masters, whole.masters) << count;
  }
}

TEST_F(KeptByFour, AreNoneUntilEveryRankHasItsPart) {
  constexpr std::uint32_t kLost = 2;
  const auto lose_one = [](const AsRank& rank) {
    rank.keep_step();
    check(rank.self.rank() != Rank{kLost}, ErrorCode::io_error, "lost");
    static_cast<void>(rank.kept.finish(rank.trainer, rank.config));
  };
  EXPECT_THROW(as_ranks(lose_one), Error);
  EXPECT_TRUE(std::filesystem::exists(rank_directory(checkpoint(2), 1) / "state"));
  EXPECT_TRUE(steps().empty());
  EXPECT_FALSE(RunDirectory(checkpoint(2)).exists());

  as_ranks([](const AsRank& rank) {  // whose copy takes the place of what was left
    rank.keep_step();
    ASSERT_TRUE(rank.kept.finish(rank.trainer, rank.config));
    EXPECT_FALSE(rank.kept.due(2));
  });
  EXPECT_EQ(steps(), std::vector<std::uint64_t>{2});
  EXPECT_EQ(RunReader(checkpoint(2)).state().step, 2U);
}

TEST_F(KeptByFour, GoWithAllTheirPartsWhenNewerOnesAreKept) {
  as_ranks([this](const AsRank& rank) {
    rank.keep_step();
    ASSERT_TRUE(rank.kept.finish(rank.trainer, rank.config));
    rank.step();
    rank.keep_step();
    rank.self.barrier().wait();
    EXPECT_EQ(steps(), std::vector<std::uint64_t>{2});
    rank.self.barrier().wait();
    ASSERT_TRUE(rank.kept.finish(rank.trainer, rank.config));
  });
  EXPECT_EQ(steps(), std::vector<std::uint64_t>{4});
  EXPECT_FALSE(std::filesystem::exists(checkpoint(2)));
  EXPECT_EQ(RunReader(checkpoint(4)).state().step, 4U);
}

}  // namespace
}  // namespace spillway::engine::kept_checkpoints_test
