// The stages of a pipeline train as one rank: ranks that are threads of this process, on the host
// backend.
#include <gtest/gtest.h>

#include <string>

#include "tests/engine/ranks_harness.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::engine::pipeline_test {
namespace {

using config::PipelineOptions;
using config::PipelineSchedule;

plan::Replicas in_fixed_order(std::uint32_t replicas = 1,
                              plan::Sharding sharding = plan::Sharding::none) {
  return {.count = replicas, .sharding = sharding, .sums = plan::SumOrder::fixed};
}

void in_bf16(config::TrainOptions& options) {
  options.compute = DType::bf16;
  options.state_format = StateFormat::split;
}

class PipelineOf : public testing::TestWithParam<PipelineOptions> {};

TEST_P(PipelineOf, HasTheBitsOfOneRank) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(3)}) {
    RanksHarness harness(config);
    const Outcome one =
        harness.train_job({.replicas = in_fixed_order(), .adjust = in_bf16}).outcome;
    const JobOutcome job = harness.train_job(
        {.replicas = in_fixed_order(), .adjust = in_bf16, .pipeline = GetParam()});
    EXPECT_TRUE(job.outcome == one);
    EXPECT_EQ(job.sent, job.planned);
  }
}

TEST_P(PipelineOf, HasTheBitsOfOneRankWithReplicasInEveryStageOfZero) {
  RanksHarness harness(tiny_gpt2(2));
  const Outcome one = harness.train_job({.replicas = in_fixed_order(), .adjust = in_bf16}).outcome;
  for (const plan::Sharding sharding : kShardings) {
    const JobOutcome job = harness.train_job(
        {.replicas = in_fixed_order(2, sharding), .adjust = in_bf16, .pipeline = GetParam()});
    EXPECT_TRUE(job.outcome == one) << static_cast<int>(sharding);
    EXPECT_EQ(job.sent, job.planned);
  }
}

/// State on disk, saved activations that wait on the host, and boundaries in each tier.
void in_mixed_tiers(config::TrainOptions& options, config::StateHome boundaries) {
  in_bf16(options);
  options.checkpointing = config::Checkpointing::offload;
  options.residency = config::Residency::none;
  options.state_home = config::StateHome::nvme;
  options.activations = boundaries;
}

TEST_P(PipelineOf, HasTheBitsOfOneRankWhereTiersAreMixed) {
  using enum config::StateHome;
  RanksHarness harness(tiny_llama(3));
  const Outcome one = harness.train_job({.replicas = in_fixed_order(), .adjust = in_bf16}).outcome;
  for (const config::StateHome boundaries : {device, host, nvme}) {
    const auto adjust = [=](auto& options) { in_mixed_tiers(options, boundaries); };
    const JobOutcome job =
        harness.train_job({.replicas = in_fixed_order(), .adjust = adjust, .pipeline = GetParam()});
    EXPECT_TRUE(job.outcome == one) << static_cast<int>(boundaries);
    EXPECT_EQ(job.sent, job.planned);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, PipelineOf,
    testing::Values(PipelineOptions{.stages = 2, .schedule = PipelineSchedule::naive},
                    PipelineOptions{.stages = 2, .schedule = PipelineSchedule::f_then_b},
                    PipelineOptions{.stages = 2}, PipelineOptions{.stages = 4},
                    PipelineOptions{
                        .stages = 2, .chunks = 2, .schedule = PipelineSchedule::interleaved}));

/// What a pipeline has saved is loaded by another, and by ranks without one.
TEST(Pipelines, GoOnFromWhatAnotherGridHasSaved) {
  RanksHarness harness(tiny_llama(3));
  Job whole{.replicas = in_fixed_order(), .adjust = in_bf16};
  const Outcome expected = harness.train_job(whole).outcome;
  struct Way {
    Job before, after;
  };
  using enum plan::Sharding;
  const auto job = [](std::uint32_t stages, std::uint32_t replicas, plan::Sharding sharding) {
    return Job{.replicas = in_fixed_order(replicas, sharding),
               .adjust = in_bf16,
               .pipeline = {.stages = stages}};
  };
  const Way ways[] = {{job(2, 1, none), job(4, 1, none)},
                      {job(2, 2, parameters), job(1, 1, none)},
                      {job(1, 3, state), job(3, 1, none)},
                      {job(4, 1, none), job(2, 2, state)}};
  for (Way way : ways) {
    way.before.steps = 1;
    const JobOutcome first = harness.train_job(way.before);
    way.after.from = &first.saved;
    way.after.steps = kSteps - 1;
    const Outcome rest = harness.train_job(way.after).outcome;
    EXPECT_EQ(rest.losses, std::vector(expected.losses.begin() + 1, expected.losses.end()));
    EXPECT_EQ(rest.masters, expected.masters);
  }
}

/// Gives each stage of a job a trainer with random weights.
void each_stage(RanksHarness& harness, const Job& job,
                const std::function<void(const RankOfJob&, Trainer&)>& visit) {
  const std::filesystem::path run = harness.new_run();
  comm::ThreadGroup(job.pipeline.stages).run([&](comm::Communicator& self) {
    config::TrainOptions options = options_of_job(job);
    RankOfJob rank(job, self, options);
    nvme_swap::StoreOptions store;
    store.directories = {run / std::to_string(rank.stage())};
    std::filesystem::create_directories(store.directories[0]);
    const auto trainer = harness.make_rank(options, store, rank);
    trainer->cycle().initialize(model::RandomInitializer(harness.config(), trainer->layout(), 1));
    visit(rank, *trainer);
  });
}

TEST(Pipelines, EvaluateAsOneRank) {
  RanksHarness harness(tiny_gpt2(3));
  const auto evaluation_of = [&](std::uint32_t stages, config::StateHome boundaries) {
    const auto adjust = [=](auto& options) { options.activations = boundaries; };
    std::vector<double> losses(stages);
    each_stage(harness,
               {.replicas = in_fixed_order(), .adjust = adjust, .pipeline = {.stages = stages}},
               [&](const RankOfJob& rank, Trainer& trainer) {
                 losses[rank.stage()] = trainer.evaluate(harness.tokens()).loss;
               });
    return losses;
  };
  const double one = evaluation_of(1, config::StateHome::device)[0];
  EXPECT_EQ(evaluation_of(3, config::StateHome::device), std::vector(3, one));
  EXPECT_EQ(evaluation_of(3, config::StateHome::host), std::vector(3, one));
}

// Five layers and five boundaries, of which the head alone reads the last.
TEST(Pipelines, SaveEachBoundaryThatABackwardReadsOnce) {
  RanksHarness harness(tiny_gpt2(4));
  const auto adjust = [](auto& options) { options.activations = config::StateHome::nvme; };
  const Job job{.replicas = in_fixed_order(), .adjust = adjust, .pipeline = {.stages = 3}};
  std::vector<Bytes> saved(3), loaded(3), spilled(3), fetched(3);
  Bytes one;
  each_stage(harness, job, [&](const RankOfJob& rank, Trainer& trainer) {
    Outcome outcome;
    harness.steps(trainer, options_of_job(job), 2, outcome);
    const OpActions& actions = trainer.engine().actions();
    saved[rank.stage()] = actions.moved(plan::kSaveBoundary);
    loaded[rank.stage()] = actions.moved(plan::kLoadBoundary);
    spilled[rank.stage()] = actions.moved(plan::kSpillBoundary);
    fetched[rank.stage()] = actions.moved(plan::kFetchBoundary);
    if (rank.stage() == 0) one = trainer.engine().workload().boundary_bytes;
  });
  const auto sum = [](const std::vector<Bytes>& of) { return of[0] + of[1] + of[2]; };
  constexpr std::uint64_t kTimes = 2ULL * kMicroBatches * 4;
  EXPECT_EQ(sum(saved), one * kTimes);
  EXPECT_EQ(sum(spilled), Bytes{round_up(one.value(), kPageBytes)} * kTimes);
  EXPECT_EQ(loaded, saved);
  EXPECT_EQ(fetched, spilled);
}

}  // namespace
}  // namespace spillway::engine::pipeline_test
