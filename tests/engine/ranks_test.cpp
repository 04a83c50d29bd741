// Many ranks train as one: ranks that are threads of this process, on the host backend.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <latch>
#include <memory>
#include <string>

#include "runtime/base/file.hpp"
#include "runtime/engine/ranks/rank_agreement.hpp"
#include "runtime/engine/run/job_start.hpp"
#include "tests/engine/ranks_harness.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::engine::ranks_test {
namespace {

class Ranks : public testing::TestWithParam<std::uint32_t> {};

/// Returns a trainer of one rank in step 0, whose store is in a folder of its own in `run`.
std::unique_ptr<Trainer> started(const RanksHarness& harness, const config::TrainOptions& options,
                                 const std::filesystem::path& run, RankOfJob& rank) {
  nvme_swap::StoreOptions store;
  store.directories = {run / std::to_string(rank.groups().place().rank)};
  std::filesystem::create_directories(store.directories[0]);
  auto trainer = harness.make_rank(options, store, rank);
  const model::ModelLayout whole = model::make_layout(harness.config());
  trainer->cycle().initialize(model::RandomInitializer(harness.config(), whole, 1));
  return trainer;
}

TEST_P(Ranks, HaveTheBitsOfOneInFixedOrder) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(1)}) {
    RanksHarness harness(config);
    const auto bf16 = [](config::TrainOptions& options) {
      options.compute = DType::bf16;
      options.state_format = StateFormat::split;
    };
    const Outcome one =
        harness.train_job({.replicas = {.sums = plan::SumOrder::fixed}, .adjust = bf16}).outcome;
    for (const plan::Sharding sharding : kShardings) {
      const JobOutcome job = harness.train_job(
          {.replicas = {.count = GetParam(), .sharding = sharding, .sums = plan::SumOrder::fixed},
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
        harness.train_job({.replicas = {.count = GetParam(), .sharding = sharding}});
    if (!first) first = job.outcome;
    EXPECT_TRUE(job.outcome == *first) << static_cast<int>(sharding);
    EXPECT_EQ(job.sent, job.planned);
    // Sums of 24 micro-batches in another order: each of fp32's roundings is 6e-8.
    for (std::size_t i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(job.outcome.losses[i], one.losses[i], 1e-5);
    }
  }
}

// One rank's part of a node's copy is another part of the block than its shard.
TEST(RanksOfANode, HaveTheSameBitsWithASecondCopyOfParameters) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(1)}) {
    for (const plan::SumOrder sums : {plan::SumOrder::fast, plan::SumOrder::fixed}) {
      RanksHarness harness(config);
      plan::Replicas ranks{.count = 4, .sharding = plan::Sharding::parameters, .sums = sums};
      const auto bf16 = [](config::TrainOptions& options) { options.compute = DType::bf16; };
      const Outcome without = harness.train_job({.replicas = ranks, .adjust = bf16}).outcome;
      for (const std::uint32_t node : {2U, 4U}) {
        ranks.secondary = node;
        const JobOutcome job = harness.train_job({.replicas = ranks, .adjust = bf16});
        EXPECT_TRUE(job.outcome == without) << node;
        EXPECT_EQ(job.sent, job.planned);
        EXPECT_EQ(job.sent_on_node, job.planned_on_node);
        EXPECT_GT(job.sent_on_node[0], 0_B);
      }
    }
  }
}

/// The steps of two ranks, of two stages of a pipeline or of a tensor group, and what they vote on
/// around each step, with state that leaves memory.
TEST(RanksInTheSteadyState, AllocateNothingAndOpenNothing) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  RanksHarness harness(tiny_llama(1));
  std::vector<Job> jobs{{.pipeline = {.stages = 2}}, {.tensor = 2}};
  for (const plan::Sharding s : kShardings)
    jobs.push_back({.replicas = {.count = 2, .sharding = s}});
  for (const Job& job : jobs) {
    const std::filesystem::path run = harness.new_run();
    comm::ThreadGroup(2).run([&](comm::Communicator& self) {
      config::TrainOptions options = options_of_job(job);
      RankOfJob rank(job, self, options);
      options.state_home = config::StateHome::nvme;
      const auto trainer = started(harness, options, run, rank);
      const data::Sampler sampler = harness.sampler(options);
      const auto steps = [&](int count) {
        for (int i = 0; i < count && !rank.groups().any(Vote::no); ++i) {
          trainer->step(harness.tokens(), sampler);
        }
      };
      steps(3);
      self.barrier().wait();
      std::optional<test_support::AllocationCounter> counter;
      if (rank.groups().leads()) counter.emplace();
      self.barrier().wait();
      steps(5);
      self.barrier().wait();
      if (counter) {
        EXPECT_EQ(counter->allocations(), 0);
        EXPECT_EQ(counter->opens(), 0);
      }
      counter.reset();
      self.barrier().wait();
    });
  }
}

// Until then, the commit before is what all of them can go back to.
TEST(RanksThatCommit, WaitUntilAllOfThemHave) {
  const Job job{.replicas = {.count = 2}};
  RanksHarness harness(tiny_llama(1));
  for (const config::StateHome home : {config::StateHome::host, config::StateHome::nvme}) {
    const std::filesystem::path run = harness.new_run();
    std::latch ready(2);
    comm::ThreadGroup(2).run([&](comm::Communicator& self) {
      config::TrainOptions options = options_of_job(job);
      options.state_home = home;
      RankOfJob rank(job, self, options);
      const auto trainer = started(harness, options, run, rank);
      ready.arrive_and_wait();
      if (!rank.groups().leads()) return self.abandon("it does not commit");
      EXPECT_THROW(trainer->cycle().commit(), Error);
      EXPECT_EQ(trainer->cycle().commits().committed_step(), 0U);  // its own is made
    });
  }
}

TEST(RanksThatPlan, TakeTheSlowestProfileAndMeasureASlowNetworkWithFewBytes) {
  constexpr double kLink = 0.001;
  std::array<plan::MachineProfile, 2> profiles;
  comm::ThreadGroup(2, {.link_gigabytes_per_second = kLink}).run([&](comm::Communicator& self) {
    const std::uint32_t rank = self.rank().value();
    plan::MachineProfile mine;
    mine.gpu_flops = rank == 0 ? 2e9 : 1e9;
    mine.h2d = rank == 0 ? 1e9 : 2e9;
    RankGroups ranks(&self, {.replicas = 2});
    ranks.join(1);
    profiles[rank] = slowest(ranks, with_links(ranks, mine));
    // Over this link, the 4 MiB that a faster one is measured with take 4 seconds.
    EXPECT_LT(self.sent(), 1_MiB);
  });
  for (const plan::MachineProfile& profile : profiles) {
    EXPECT_EQ(profile.gpu_flops, 1e9);
    EXPECT_EQ(profile.h2d, 1e9);
    EXPECT_EQ(profile.net, profiles[0].net);
    EXPECT_GT(profile.net, 0);
    EXPECT_LT(profile.net, 1.1 * kLink * 1e9);
  }
}

TEST(RanksThatPlan, KeepToTheLeastMemoryOfEachKindThatOneOfThemHas) {
  comm::ThreadGroup(3).run([](comm::Communicator& self) {
    const plan::Budgets mine[] = {{3_B, 7_B, 4_B}, {1_B, 8_B, 5_B}, {2_B, 9_B, 3_B}};
    RankGroups ranks(&self, {.replicas = 3});
    const plan::Budgets all = least(ranks, mine[self.rank().value()]);
    EXPECT_EQ(all.device, 1_B);
    EXPECT_EQ(all.host, 7_B);
    EXPECT_EQ(all.nvme, 3_B);
  });
}

TEST(RanksThatPlan, CommitAsSeldomAsTheSlowestOfThem) {
  comm::ThreadGroup(3).run([](comm::Communicator& self) {
    const std::uint64_t mine[] = {2, 7, 1};
    RankGroups ranks(&self, {.replicas = 3});
    EXPECT_EQ(largest_of(ranks, mine[self.rank().value()]), 7U);
  });
  RankGroups alone;
  EXPECT_EQ(largest_of(alone, 4), 4U);
}

TEST(RanksThatPlan, TakeNoGpuToBeOfAKindThatAnotherIsNot) {
  comm::ThreadGroup(2).run([](comm::Communicator& self) {
    const std::uint32_t mine[] = {100, 90};
    RankGroups ranks(&self, {.replicas = 2});
    EXPECT_EQ(common_to(ranks, mine[self.rank().value()]), 0U);
    EXPECT_EQ(common_to(ranks, 100), 100U);
  });
  RankGroups alone;
  EXPECT_EQ(common_to(alone, 90), 90U);
}

// Rank 0 has next to nothing to do, and cannot tell how long the others take.
TEST(RanksThatPlan, TakeTheStepOfTheStageThatWaitsLeast) {
  comm::ThreadGroup(3).run([](comm::Communicator& self) {
    const double stretch[] = {1e6, 1.5, 1.25};
    const double seconds[] = {0.01, 2.5, 4};
    const std::uint32_t rank = self.rank().value();
    RankGroups ranks(&self, {.replicas = 3});
    EXPECT_EQ(seconds_of_job(ranks, stretch[rank], seconds[rank]), 5.0);
  });
  RankGroups alone;
  EXPECT_EQ(seconds_of_job(alone, 1, 3), 3.0);
}

TEST(RanksOfAMachine, KnowItFromAnotherOfTheSameName) {
  const MachineName name = machine_name();
  EXPECT_EQ(name, machine_name());
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size() - 1), 0);
  EXPECT_STREQ(name.data(), host.data());
  const std::string start = read_text_file("/proc/sys/kernel/random/boot_id", 1_KiB);
  EXPECT_NE(std::string(name.begin(), name.end()).find(start.substr(0, start.find('\n'))),
            std::string::npos);
}

TEST(RanksThatGoOnFromARun, AreRefusedWhereItHasMovedOnBetweenThem) {
  for (const std::uint32_t late : {0U, 2U, 5U}) {  // 5: none
    const auto start = [late](comm::Communicator& self) {
      RankGroups ranks(&self, {.replicas = 3});
      check_same_step(ranks, "/old", StepIndex{self.rank() == Rank{late} ? 8U : 7U});
    };
    if (late == 5) {
      EXPECT_NO_THROW(comm::ThreadGroup(3).run(start));
    } else {
      EXPECT_THROW(comm::ThreadGroup(3).run(start), Error);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, Ranks, testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace spillway::engine::ranks_test
