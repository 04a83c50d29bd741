// PipeDream-2BW and PipeDream against one rank that keeps older weights by hand: it trains on them,
// and updates the newest ones. The stages are threads of this process, on the host backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/plan/pipeline/stages.hpp"
#include "tests/engine/ranks_harness.hpp"
#include "tests/engine/weights_by_hand.hpp"

namespace spillway::engine::stale_weights_test {
namespace {

using config::PipelineOptions;
using config::PipelineSchedule;

constexpr int kStaleSteps = 6;

plan::Replicas in_fixed_order(std::uint32_t replicas = 1) {
  return {.count = replicas, .sums = plan::SumOrder::fixed};
}

PipelineOptions two_buffered(std::uint32_t stages) {
  return {.stages = stages, .schedule = PipelineSchedule::pipedream_2bw};
}

void in_bf16(config::TrainOptions& options) {
  options.compute = DType::bf16;
  options.state_format = StateFormat::split;
}

/// Overflows at first, so that updates are skipped.
void in_fp16(config::TrainOptions& options) {
  options.compute = DType::fp16;
  options.state_format = StateFormat::fp32;
  options.loss_scale.initial = 0x1p26;
  options.loss_scale.hysteresis = 1;
}

class StaleHarness : public RanksHarness {
 public:
  using RanksHarness::RanksHarness;

  /// `stages`: of PipeDream, where a stage's weights age by one for each stage behind it, and where
  /// the head uses the embedding of the first stage if it is tied; 0: of PipeDream-2BW.
  [[nodiscard]] Outcome train_by_hand(void (*adjust)(config::TrainOptions&),
                                      std::uint32_t stages = 0) {
    config::TrainOptions options = options_of_job({.replicas = in_fixed_order(), .adjust = adjust});
    options.residency = config::Residency::none;
    options.commits = false;
    ModelRuntime model = make_model_runtime(config(), options, {.products = products});
    const plan::Budgets budgets{1_GiB, 1_GiB, 1_GiB};
    const plan::Workload workload =
        make_workload(config(), *model.transformer, options, in_fixed_order());
    EngineSetup setup{.config = config(),
                      .plan = {.options = options,
                               .workload = workload,
                               .budgets = budgets,
                               .placement = place(config(), options, workload, budgets)}};
    Ages ages(workload.blocks.size(), 1);
    if (stages > 0) {
      const auto parts = plan::cut_layers(workload, {.stages = stages});
      for (std::uint32_t stage = 0; stage < stages; ++stage) {
        for (std::uint32_t b = parts[stage].first; b < parts[stage].end; ++b) {
          ages[b] = stages - 1 - stage;
        }
      }
    }
    WeightsByHand one(std::move(setup), std::move(model), std::move(ages));
    one.cycle().initialize(model::RandomInitializer(config(), one.layout(), options.seed));
    const data::Sampler sampler = this->sampler(options);
    Outcome outcome;
    for (int i = 0; i < kStaleSteps; ++i) {
      const StepResult result = one.step(tokens(), sampler);
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.grad_norm);
    }
    const auto& blocks = one.layout().blocks;
    for (std::uint32_t block = 0; block < blocks.size(); ++block) {
      std::vector<float> masters(one.engine().workload().blocks[block].padded_parameters.value());
      one.cycle().read_masters(block, masters);
      masters.resize(blocks[block].parameters.value());
      outcome.masters.insert(outcome.masters.end(), masters.begin(), masters.end());
    }
    return outcome;
  }
};

TEST(StaleWeights, AreThoseThatAreKeptByHand) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(3)}) {
    StaleHarness harness(config);
    const Outcome by_hand = harness.train_by_hand(in_bf16);
    for (const std::uint32_t stages : {2U, 3U, 4U}) {
      const JobOutcome job = harness.train_job({.replicas = in_fixed_order(),
                                                .adjust = in_bf16,
                                                .steps = kStaleSteps,
                                                .pipeline = two_buffered(stages)});
      EXPECT_TRUE(job.outcome == by_hand) << stages;
      EXPECT_EQ(job.sent, job.planned);
    }
    // Other mathematics: the first two steps have the same weights by definition.
    const Outcome flushed = harness
                                .train_job({.replicas = in_fixed_order(),
                                            .adjust = in_bf16,
                                            .steps = kStaleSteps,
                                            .pipeline = {.stages = 2}})
                                .outcome;
    EXPECT_EQ(flushed.losses[0], by_hand.losses[0]);
    for (std::size_t step = 1; step < kStaleSteps; ++step) {
      EXPECT_NE(flushed.losses[step], by_hand.losses[step]);
    }
  }
}

void each_in_bf16(config::TrainOptions& options) {
  in_bf16(options);
  options.gradient_accumulation_steps = options.rounds = 1;
}

PipelineOptions stashing(std::uint32_t stages) {
  return {.stages = stages, .schedule = PipelineSchedule::pipedream};
}

// PipeDream: an update after each round, on weights that are older on earlier stages.
TEST(StaleWeights, AreStashedAsTheyAreKeptByHand) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(3)}) {
    StaleHarness harness(config);
    for (const std::uint32_t stages : {2U, 3U, 4U}) {
      const JobOutcome job = harness.train_job({.replicas = in_fixed_order(),
                                                .adjust = each_in_bf16,
                                                .steps = kStaleSteps,
                                                .pipeline = stashing(stages)});
      EXPECT_TRUE(job.outcome == harness.train_by_hand(each_in_bf16, stages)) << stages;
      EXPECT_EQ(job.sent, job.planned);
    }
  }
}

TEST(StaleWeights, AreStashedWhereTiersAreMixed) {
  StaleHarness harness(tiny_llama(3));
  const auto mix = [](config::TrainOptions& options) {
    each_in_bf16(options);
    options.checkpointing = config::Checkpointing::offload;
    options.residency = config::Residency::none;
    options.state_home = config::StateHome::nvme;
  };
  const JobOutcome job = harness.train_job(
      {.replicas = in_fixed_order(), .adjust = mix, .steps = kStaleSteps, .pipeline = stashing(4)});
  EXPECT_TRUE(job.outcome == harness.train_by_hand(each_in_bf16, 4));
}

TEST(StaleWeights, AreTheSameWithReplicas) {
  StaleHarness harness(tiny_llama(3));
  const JobOutcome job = harness.train_job({.replicas = in_fixed_order(2),
                                            .adjust = in_bf16,
                                            .steps = kStaleSteps,
                                            .pipeline = two_buffered(2)});
  EXPECT_TRUE(job.outcome == harness.train_by_hand(in_bf16));
  EXPECT_EQ(job.sent, job.planned);
}

TEST(StaleWeights, AreTheSameWhereTiersAreMixed) {
  StaleHarness harness(tiny_llama(3));
  const Outcome by_hand = harness.train_by_hand(in_bf16);
  for (const auto home : {config::StateHome::host, config::StateHome::nvme}) {
    const auto mix = [home](config::TrainOptions& options) {
      in_bf16(options);
      options.checkpointing = config::Checkpointing::offload;
      options.residency = config::Residency::none;
      options.state_home = home;
    };
    const JobOutcome job = harness.train_job({.replicas = in_fixed_order(),
                                              .adjust = mix,
                                              .steps = kStaleSteps,
                                              .pipeline = two_buffered(3)});
    EXPECT_TRUE(job.outcome == by_hand);
  }
}

// A step whose gradients overflow leaves the weights as they are, but the next one uses newer ones.
TEST(StaleWeights, AgeWhereAnUpdateIsSkipped) {
  StaleHarness harness(tiny_llama(2));
  const Outcome by_hand = harness.train_by_hand(in_fp16);
  ASSERT_FALSE(std::isfinite(by_hand.norms.front()));
  ASSERT_TRUE(std::isfinite(by_hand.norms[kStaleSteps - 2]));
  const JobOutcome job = harness.train_job({.replicas = in_fixed_order(),
                                            .adjust = in_fp16,
                                            .steps = kStaleSteps,
                                            .pipeline = two_buffered(2)});
  EXPECT_TRUE(job.outcome == by_hand);
}

void without_clipping(config::TrainOptions& options) {
  in_bf16(options);
  options.gradient_clipping = 0;
  options.commit_every = 100;
}

void each_without_clipping(config::TrainOptions& options) {
  each_in_bf16(options);
  options.gradient_clipping = 0;
  options.commit_every = 100;
}

// Losses and norms of four steps are brought together at once, and of the last two at the end.
TEST(StaleWeights, AreTheSameWhereStagesSeldomMeet) {
  StaleHarness harness(tiny_llama(3));
  for (const std::uint32_t every : {1U, 4U, 0U}) {
    PipelineOptions pipeline = two_buffered(3);
    pipeline.meet_every = every;
    JobOutcome job = harness.train_job({.replicas = in_fixed_order(2),
                                        .adjust = without_clipping,
                                        .steps = kStaleSteps,
                                        .pipeline = pipeline});
    EXPECT_TRUE(job.outcome == harness.train_by_hand(without_clipping)) << every;
    pipeline = stashing(4);
    pipeline.meet_every = every;
    job = harness.train_job({.replicas = in_fixed_order(),
                             .adjust = each_without_clipping,
                             .steps = kStaleSteps,
                             .pipeline = pipeline});
    EXPECT_TRUE(job.outcome == harness.train_by_hand(each_without_clipping, 4)) << every;
  }
}

/// What the first stage tells: losses by step, and of how many steps at once.
struct Told {
  std::vector<double> losses;
  std::vector<std::size_t> at_once;

  void add(std::span<const StepResult> results) {
    for (const StepResult& result : results) losses.push_back(result.loss);
    if (!results.empty()) at_once.push_back(results.size());
  }
};

/// Trains the stages of a pipeline; `between` is called on each rank after each step.
template <class Between>
Told told_by(RanksHarness& harness, const PipelineOptions& pipeline, std::uint64_t commit_every,
             const Between& between) {
  const bool each = pipeline.schedule == PipelineSchedule::pipedream;
  Job job{
      .replicas = in_fixed_order(), .adjust = each ? each_in_bf16 : in_bf16, .pipeline = pipeline};
  if (pipeline.meet_every > 1) job.adjust = each ? each_without_clipping : without_clipping;
  Told told;
  const std::filesystem::path run = harness.new_run();
  comm::ThreadGroup(job.pipeline.stages).run([&](comm::Communicator& self) {
    config::TrainOptions options = options_of_job(job);
    RankOfJob rank(job, self, options);
    options.commit_every = commit_every;
    nvme_swap::StoreOptions store;
    store.directories = {run / std::to_string(rank.stage())};
    std::filesystem::create_directories(store.directories[0]);
    const auto trainer = harness.make_rank(options, store, rank);
    trainer->cycle().initialize(model::RandomInitializer(harness.config(), trainer->layout(), 1));
    const data::Sampler sampler = harness.sampler(options);
    for (int i = 0; i < kStaleSteps; ++i) {
      const auto results = trainer->step(harness.tokens(), sampler);
      if (rank.stage() == 0) told.add(results);
      between(*trainer);
    }
    const auto results = trainer->gather_results();
    if (rank.stage() == 0) told.add(results);
  });
  return told;
}

template <class Between>
std::vector<double> losses_of(RanksHarness& harness, const PipelineOptions& pipeline,
                              const Between& between) {
  return told_by(harness, pipeline, /*commit_every=*/100, between).losses;
}

// An evaluation takes the memory of rounds in flight, a commit does not; neither loses a version.
TEST(StaleWeights, SurviveWhatIsDoneBetweenSteps) {
  RanksHarness harness(tiny_llama(2));
  PipelineOptions seldom = stashing(3);
  seldom.meet_every = 4;
  for (const PipelineOptions& pipeline : {two_buffered(2), stashing(4), seldom}) {
    const std::vector<double> losses = losses_of(harness, pipeline, [](Trainer&) {});
    EXPECT_EQ(losses_of(harness, pipeline, [](Trainer& t) { t.cycle().commit(); }), losses);
    EXPECT_EQ(losses_of(harness, pipeline, [&](Trainer& t) { (void)t.evaluate(harness.tokens()); }),
              losses);
  }
}

// The list of step 4 commits step 3.
TEST(StaleWeights, StagesMeetOnBothSidesOfACommit) {
  RanksHarness harness(tiny_llama(2));
  PipelineOptions seldom = stashing(3);
  seldom.meet_every = 5;
  const Told told = told_by(harness, seldom, /*commit_every=*/3, [](Trainer&) {});
  EXPECT_EQ(told.at_once, (std::vector<std::size_t>{3, 1, 2}));
  EXPECT_EQ(told_by(harness, seldom, 100, [](Trainer&) {}).at_once,
            (std::vector<std::size_t>{5, 1}));
}

// A step leaves them to the next one.
TEST(StaleWeights, LeaveBoundariesOnTheDevice) {
  config::TrainOptions options = tiny_options();
  EXPECT_EQ(placement_request(options).activations, std::nullopt);
  options.pipeline = {.stages = 2};
  EXPECT_EQ(placement_request(options).activations, std::nullopt);
  for (const auto schedule : {PipelineSchedule::pipedream, PipelineSchedule::pipedream_2bw}) {
    options.pipeline.schedule = schedule;
    EXPECT_EQ(placement_request(options).activations, plan::Tier::device);
  }
}

TEST(StaleWeights, AreNotResumed) {
  RanksHarness harness(tiny_llama(2));
  const JobOutcome job = harness.train_job(
      {.replicas = in_fixed_order(), .adjust = in_bf16, .pipeline = two_buffered(2)});
  const Job again{.replicas = in_fixed_order(), .adjust = in_bf16, .pipeline = two_buffered(2)};
  comm::ThreadGroup(2).run([&](comm::Communicator& self) {
    config::TrainOptions options = options_of_job(again);
    RankOfJob rank(again, self, options);
    try {
      (void)harness.make_rank(options, job.saved.stores[rank.stage()], rank, Start::resumed);
      ADD_FAILURE() << "it is resumed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_supported);
    }
  });
}

}  // namespace
}  // namespace spillway::engine::stale_weights_test
