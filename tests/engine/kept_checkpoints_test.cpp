// A kept checkpoint looks like one only when all of it is there.
#include "runtime/engine/run/kept_checkpoints.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <vector>

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
  RankGroups alone;
  KeptCheckpoints kept(run, alone, {.id = config.id, .save_every = 2, .keep = 1});
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

TEST(KeptCheckpointsOfARun, ThatWereMovedAwayAndLinkedBackStayWhereTheyAre) {
  TrainingHarness harness(tiny_llama());
  const config::TrainOptions options = tiny_options();
  const RunDirectory run(harness.new_run());
  const RunConfig config{
      .id = RunId{{1, 2}}, .model = harness.config(), .options = options, .data = "data"};
  const auto trainer = harness.make(options, run.root());
  RankGroups alone;
  KeptCheckpoints kept(run, alone, {.id = config.id, .save_every = 1, .keep = 1});
  Outcome outcome;
  const auto keep = [&](std::uint64_t step) {
    harness.steps(*trainer, options, 1, outcome);
    EXPECT_FALSE(kept.finish(*trainer, config));
    kept.start(*trainer);
    EXPECT_EQ(trainer->state().step, step);
    harness.steps(*trainer, options, 1, outcome);
    EXPECT_TRUE(kept.finish(*trainer, config));
  };
  keep(1);
  const RunDirectory moved(run.root() / "../moved");
  std::filesystem::rename(run.checkpoints() / "step-1", moved.root());
  std::filesystem::create_directory_symlink(moved.root(), run.checkpoints() / "step-1");
  EXPECT_EQ(KeptCheckpoints::steps(run), std::vector<std::uint64_t>{1});
  keep(3);
  EXPECT_EQ(KeptCheckpoints::steps(run), std::vector<std::uint64_t>{3});
  EXPECT_FALSE(std::filesystem::is_symlink(run.checkpoints() / "step-1"));
  EXPECT_EQ(RunReader(moved.root()).state().step, 1U);
}

/// What happens to one of the disk operations of a copy, counted from 1; to number 0 that the copy
/// cannot begin.
struct CopyFault {
  enum class Kind : std::uint8_t {
    fails,      ///< it is answered by EIO
    is_zeroed,  ///< of a write, zeros reach the disk, and it claims success
  };
  Kind kind = Kind::fails;
  std::uint64_t number = 0;
  std::uint64_t seen = 0;
  bool struck = false;
};

class FaultyCopyEngine final : public nvme_swap::IoEngine {
 public:
  FaultyCopyEngine(std::unique_ptr<IoEngine> engine, CopyFault& fault)
      : engine_(std::move(engine)), fault_(fault) {}
  [[nodiscard]] std::string_view name() const override { return "faulty"; }
  [[nodiscard]] std::size_t submit(std::span<const nvme_swap::IoRequest> requests) override {
    nvme_swap::IoRequest request = requests.front();
    const bool writes = request.operation == nvme_swap::IoOperation::write;
    const bool strikes = fault_.seen + 1 == fault_.number;
    const bool zeroes = strikes && writes && fault_.kind == CopyFault::Kind::is_zeroed;
    if (zeroes) request.data = zeros(request.length);
    if (engine_->submit({&request, 1}) == 0) return 0;
    ++fault_.seen;
    if (strikes) fault_.struck = true;
    if (strikes && fault_.kind == CopyFault::Kind::fails) failing_ = request.tag;
    return 1;
  }
  [[nodiscard]] std::size_t poll(std::span<nvme_swap::IoResult> results) override {
    const std::size_t finished = engine_->poll(results);
    for (nvme_swap::IoResult& result : results.first(finished)) {
      if (result.tag != failing_) continue;
      result.result = -EIO;
      failing_.reset();
    }
    return finished;
  }
  void wait() override { engine_->wait(); }

 private:
  std::byte* zeros(std::size_t length) {
    zeros_.assign(length + kPageBytes, std::byte{0});
    const auto address = reinterpret_cast<std::uintptr_t>(zeros_.data());
    return zeros_.data() + (kPageBytes - address % kPageBytes) % kPageBytes;
  }

  std::unique_ptr<IoEngine> engine_;
  CopyFault& fault_;
  std::optional<std::uint64_t> failing_;
  std::vector<std::byte> zeros_;
};

using TierAndFault = std::tuple<config::StateHome, CopyFault::Kind>;
class KeptCheckpointsWhoseCopyFails : public testing::TestWithParam<TierAndFault> {
 protected:
  KeptCheckpointsWhoseCopyFails() {
    options_.state_home = std::get<0>(GetParam());
    for (const int step : {2, 4}) {
      Outcome outcome;
      const auto trainer = harness_.make(options_, harness_.new_run());
      harness_.steps(*trainer, options_, step, outcome);
      harness_.finish(*trainer, outcome);
      masters_[step] = outcome.masters;
    }
    harness_.adjust_store = [this](nvme_swap::StoreOptions& store) {
      store.adapt = [this](auto engine, const auto&) -> std::unique_ptr<nvme_swap::IoEngine> {
        if (fault_ == nullptr) return engine;
        fault_->struck |= fault_->number == 0;
        check(fault_->number > 0, ErrorCode::does_not_fit, "the copy cannot begin");
        return std::make_unique<FaultyCopyEngine>(std::move(engine), *fault_);
      };
    };
  }

  /// Keeps step 2, then step 4 with the fault, and ends as a run does. Returns what is kept then.
  RunDirectory keep_two(CopyFault& fault) {
    const RunDirectory run(harness_.new_run());
    const RunConfig config{
        .id = RunId{{1, 2}}, .model = harness_.config(), .options = options_, .data = "data"};
    RankGroups alone;
    KeptCheckpoints kept(run, alone, {.id = config.id, .save_every = 2, .keep = 1});
    fault_ = nullptr;
    const auto trainer = harness_.make(options_, run.root());
    Outcome outcome;
    harness_.steps(*trainer, options_, 2, outcome);
    kept.start(*trainer);
    harness_.steps(*trainer, options_, 1, outcome);
    EXPECT_TRUE(kept.finish(*trainer, config));
    harness_.steps(*trainer, options_, 1, outcome);
    fault_ = &fault;
    try {
      kept.start(*trainer);
      harness_.steps(*trainer, options_, 1, outcome);
      EXPECT_TRUE(kept.finish(*trainer, config));
    } catch (const Error&) {
      EXPECT_TRUE(fault.struck);
      commit_after_error(*trainer, kept, config);
    }
    fault_ = nullptr;
    return run;
  }
  static void commit_after_error(Trainer& trainer, KeptCheckpoints& kept, const RunConfig& config) {
    if (!trainer.cycle().is_sound()) return;
    try {
      trainer.cycle().commit();
      static_cast<void>(kept.finish(trainer, config));
    } catch (const Error& second) {
      EXPECT_FALSE(std::string(second.what()).empty());
    }
  }
  void expect_whole(const RunDirectory& checkpoint) const {
    const RunReader reader(checkpoint.root());
    std::vector<float> masters;
    for (std::uint32_t block = 0; block < reader.layout().blocks.size(); ++block) {
      std::vector<float> of_block(reader.layout().blocks[block].padded_parameters.value());
      reader.read(BlockIndex{block}, ElementCount{}, of_block);
      masters.insert(masters.end(), of_block.begin(), of_block.end());
    }
    EXPECT_EQ(masters, masters_.at(static_cast<int>(reader.state().step)));
  }

  TrainingHarness harness_{tiny_gpt2(1)};
  config::TrainOptions options_ = tiny_options();
  std::map<int, std::vector<float>> masters_;  // by step, of a run that keeps nothing
  CopyFault* fault_ = nullptr;
};

TEST_P(KeptCheckpointsWhoseCopyFails, LeaveTheOlderOne) {
  std::uint64_t number = 0;
  std::uint64_t lost = 0;
  for (bool struck = true; struck; ++number) {
    CopyFault fault{.kind = std::get<1>(GetParam()), .number = number};
    const RunDirectory run = keep_two(fault);
    const std::vector<RunDirectory> kept = KeptCheckpoints::in(run);
    ASSERT_FALSE(kept.empty()) << "operation " << number;
    for (const RunDirectory& checkpoint : kept) expect_whole(checkpoint);
    if (KeptCheckpoints::steps(run).back() == 2) ++lost;
    struck = fault.struck;
    ASSERT_FALSE(HasFailure()) << "operation " << number;
    std::filesystem::remove_all(run.root());
  }
  EXPECT_GT(number, 8U) << "tiles are written, flushed, committed and read";
  EXPECT_GT(lost, 3U);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, KeptCheckpointsWhoseCopyFails,
    testing::Combine(testing::Values(config::StateHome::nvme, config::StateHome::host),
                     testing::Values(CopyFault::Kind::fails, CopyFault::Kind::is_zeroed)),
    [](const auto& of) -> std::string {
      const bool fails = std::get<1>(of.param) == CopyFault::Kind::fails;
      const bool on_disk = std::get<0>(of.param) == config::StateHome::nvme;
      return std::string(on_disk ? "nvme" : "host") + (fails ? "Fails" : "IsZeroed");
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
      const std::uint32_t replica = self.rank().value();
      const plan::Replicas replicas{
          .count = kRanks, .sharding = plan::Sharding::parameters, .sums = plan::SumOrder::fixed};
      config::TrainOptions options = options_of_ranks(replicas.count, replicas.sums);
      RankOfJob rank({.replicas = replicas}, self, options);
      nvme_swap::StoreOptions store;
      store.directories = {state / std::to_string(replica)};
      std::filesystem::create_directories(store.directories[0]);
      const auto trainer = harness_.make_rank(options, store, rank);
      trainer->cycle().initialize(
          model::RandomInitializer(harness_.config(), trainer->layout(), options.seed));
      const RunConfig config{.id = RunId{{1, replica}},
                             .model = harness_.config(),
                             .options = options,
                             .data = "data"};
      KeptCheckpoints kept(
          run_, rank.groups(),
          {.id = config.id,
           .save_every = 2,
           .keep = 1,
           .part = {.ranks = kRanks, .rank = replica, .sharding = replicas.sharding}});
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
  const plan::Replicas one{.sums = plan::SumOrder::fixed};
  const Outcome whole = harness_.train_job({.replicas = one}).outcome;
  for (const std::uint32_t count : {1U, 2U, 3U, 8U}) {
    const Outcome after = harness_
                              .train_job({.replicas = {.count = count,
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
