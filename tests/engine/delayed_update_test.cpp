// Updates that take the next step's passes (ZeRO-Offload, section 4.2), against one that keeps the
// older weights by hand; and what ends a run, which goes on with the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/training_harness.hpp"
#include "tests/engine/weights_by_hand.hpp"

namespace spillway::engine::delayed_update_test {
namespace {

constexpr int kDelayedSteps = 9;
constexpr plan::Budgets kPlenty{1_GiB, 1_GiB, 1_GiB};

config::TrainOptions delayed_options(std::uint64_t from = 1) {
  config::TrainOptions options = tiny_options();
  options.update = config::UpdateMode::delayed;
  options.delayed_from = from;
  options.state_home = config::StateHome::host;
  options.commit_every = 100;
  return options;
}

class DelayedHarness : public TrainingHarness {
 public:
  using TrainingHarness::TrainingHarness;

  [[nodiscard]] Outcome train_by_hand(config::TrainOptions options, int count) {
    const std::uint64_t from = options.delayed_from;
    options.update = config::UpdateMode::deferred;
    options.state_home = config::StateHome::host;
    options.residency = config::Residency::none;
    options.commits = false;
    ModelRuntime model = make_model_runtime(config(), options, {.products = products});
    const plan::Workload workload = make_workload(config(), *model.transformer, options);
    EngineSetup setup{.config = config(),
                      .plan = {.options = options,
                               .workload = workload,
                               .budgets = kPlenty,
                               .placement = place(config(), options, workload, kPlenty)}};
    WeightsByHand one(std::move(setup), std::move(model), Ages(workload.blocks.size(), 1), from);
    one.cycle().initialize(model::RandomInitializer(config(), one.layout(), options.seed));
    Outcome outcome;
    for (int i = 0; i < count; ++i) {
      const StepResult result = one.step(tokens(), sampler(options));
      add({&result, 1}, outcome);
    }
    for (std::uint32_t block = 0; block < workload.blocks.size(); ++block) {
      std::vector<float> masters(workload.blocks[block].padded_parameters.value());
      one.cycle().read_masters(block, masters);
      outcome.masters.insert(outcome.masters.end(), masters.begin(), masters.end());
    }
    return outcome;
  }

  /// What a run has done that went on `trainer`, without what an earlier process did in vain.
  static void go_on(const Trainer& trainer, Outcome& outcome) {
    outcome.losses.resize(trainer.state().step);
    outcome.norms.resize(trainer.state().step);
  }
};

TEST(DelayedUpdates, AreThoseOfOlderWeightsThatAreKeptByHand) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(3)}) {
    DelayedHarness harness(config);
    const Outcome deferred = [&] {
      config::TrainOptions options = delayed_options();
      options.update = config::UpdateMode::deferred;
      return harness.train(options, kDelayedSteps);
    }();
    for (const std::uint64_t from : {1U, 2U, 4U}) {
      const Outcome by_hand = harness.train_by_hand(delayed_options(from), kDelayedSteps);
      EXPECT_EQ(harness.train(delayed_options(from), kDelayedSteps), by_hand) << from;
      // The first step has no update before it; that of the first delayed one is missing.
      const std::size_t first = std::max<std::size_t>(from, 2) - 1;
      for (std::size_t step = 0; step < kDelayedSteps; ++step) {
        EXPECT_EQ(by_hand.losses[step] == deferred.losses[step], step < first) << step;
      }
    }
  }
}

TEST(DelayedUpdates, AreTheSameInEveryTierAndFormat) {
  DelayedHarness harness(tiny_llama(3));
  const StateFormat formats[] = {StateFormat::split, StateFormat::bf16, StateFormat::int8};
  for (const StateFormat format : formats) {
    config::TrainOptions options = delayed_options(3);
    options.compute = DType::bf16;
    options.state_format = format;
    const Outcome by_hand = harness.train_by_hand(options, kDelayedSteps);
    for (const auto home : {config::StateHome::host, config::StateHome::device}) {
      for (const auto residency : {config::Residency::none, config::Residency::all}) {
        if (home == config::StateHome::device && residency == config::Residency::none) continue;
        options.state_home = home;
        options.residency = residency;
        EXPECT_EQ(harness.train(options, kDelayedSteps), by_hand) << name_of(format);
      }
    }
    options.work_order = config::WorkOrder::micro_batch_major;
    options.checkpointing = config::Checkpointing::recompute;
    EXPECT_EQ(harness.train(options, kDelayedSteps), by_hand) << name_of(format);
  }
}

// A step whose gradients overflow leaves the weights as they are, and the next one lacks nothing.
TEST(DelayedUpdates, LackNoneWhereAnUpdateIsSkipped) {
  DelayedHarness harness(tiny_llama(2));
  config::TrainOptions options = delayed_options();
  options.compute = DType::fp16;
  options.loss_scale.initial = 0x1p26;
  options.loss_scale.hysteresis = 1;
  const Outcome by_hand = harness.train_by_hand(options, kDelayedSteps);
  ASSERT_FALSE(std::isfinite(by_hand.norms.front()));
  ASSERT_TRUE(std::isfinite(by_hand.norms[kDelayedSteps - 2]));
  EXPECT_EQ(harness.train(options, kDelayedSteps), by_hand);
}

struct Home {
  const char* name;
  StateFormat format;
  config::StateHome state;
  config::Residency residency;
};

class DelayedRuns : public testing::TestWithParam<Home> {
 protected:
  DelayedRuns() : harness_(tiny_gpt2(2)) {
    options_.state_format = GetParam().format;
    options_.compute = GetParam().format == StateFormat::fp32 ? DType::fp32 : DType::bf16;
    options_.state_home = GetParam().state;
    options_.residency = GetParam().residency;
  }
  DelayedHarness harness_;
  config::TrainOptions options_ = delayed_options(4);
};

TEST_P(DelayedRuns, GoOnFromTheLastCommitAfterAnEndAtAnyStep) {
  const Outcome whole = harness_.train_by_hand(options_, kDelayedSteps);
  for (const std::uint64_t every : {1U, 2U, 3U}) {
    options_.commit_every = every;
    for (int end = 1; end < kDelayedSteps; ++end) {
      const std::filesystem::path run = harness_.new_run();
      Outcome outcome;
      {
        // It ends as one that is killed behind a step: nothing of that is committed.
        const auto trainer = harness_.make(options_, run);
        harness_.steps(*trainer, options_, end, outcome);
        if (!trainer->cycle().commits().committed_step()) continue;
      }
      const auto trainer = harness_.make(options_, run, true);
      EXPECT_LT(trainer->state().step, static_cast<std::uint64_t>(end));
      DelayedHarness::go_on(*trainer, outcome);
      harness_.steps(*trainer, options_, kDelayedSteps - static_cast<int>(trainer->state().step),
                     outcome);
      harness_.finish(*trainer, outcome);
      ASSERT_EQ(outcome, whole) << "every " << every << ", ended behind " << end;
    }
  }
}

TEST_P(DelayedRuns, AreTheSameWithEvaluationsAndAnEndThatCommits) {
  const Outcome whole = harness_.train_by_hand(options_, kDelayedSteps);
  const std::filesystem::path run = harness_.new_run();
  Outcome outcome;
  for (int done = 0; done < kDelayedSteps; done += 3) {
    const auto trainer = harness_.make(options_, run, done > 0);
    ASSERT_EQ(trainer->state().step, static_cast<std::uint64_t>(done));
    harness_.steps(*trainer, options_, 2, outcome);
    const double loss = trainer->evaluate(harness_.tokens()).loss;
    harness_.steps(*trainer, options_, 1, outcome);
    EXPECT_NE(trainer->evaluate(harness_.tokens()).loss, loss);
    trainer->cycle().commit();
    if (done + 3 == kDelayedSteps) harness_.finish(*trainer, outcome);
  }
  EXPECT_EQ(outcome, whole);
}

TEST_P(DelayedRuns, GoOnFromACopyOfTheirState) {
  const Outcome whole = harness_.train_by_hand(options_, kDelayedSteps);
  const auto trainer = harness_.make(options_, harness_.new_run());
  Outcome outcome;
  harness_.steps(*trainer, options_, 5, outcome);
  const std::filesystem::path copy = harness_.new_run();
  nvme_swap::StoreOptions store;
  store.directories = state_directories(options_, copy);
  std::filesystem::create_directories(store.directories.front());
  trainer->cycle().commits().copy_next(store);
  harness_.steps(*trainer, options_, 1, outcome);
  EXPECT_EQ(trainer->cycle().commits().copied_step(), 5U);
  const auto other = harness_.make(options_, copy, true);
  DelayedHarness::go_on(*other, outcome);
  harness_.steps(*other, options_, kDelayedSteps - 5, outcome);
  harness_.finish(*other, outcome);
  EXPECT_EQ(outcome, whole);
}

INSTANTIATE_TEST_SUITE_P(
    Homes, DelayedRuns,
    testing::Values(
        Home{"streamed", StateFormat::split, config::StateHome::host, config::Residency::none},
        Home{"resident", StateFormat::bf16, config::StateHome::host, config::Residency::all},
        Home{"device", StateFormat::split, config::StateHome::device, config::Residency::all},
        Home{"fp32", StateFormat::fp32, config::StateHome::host, config::Residency::none}),
    [](const auto& home) { return std::string(home.param.name); });

// Another run begins with the newest weights, whatever the older ones were.
TEST(DelayedUpdates, LeaveAStateThatARunWithoutThemReads) {
  DelayedHarness harness(tiny_gpt2(2));
  config::TrainOptions options = delayed_options();
  const std::filesystem::path run = harness.new_run();
  Outcome outcome;
  {
    const auto trainer = harness.make(options, run);
    harness.steps(*trainer, options, 4, outcome);
    harness.finish(*trainer, outcome);
  }
  nvme_swap::StoreOptions store;
  store.directories = state_directories(options, run);
  options.update = config::UpdateMode::deferred;
  const auto plain = harness.make(options, harness.new_run());
  plain->cycle().adopt(SavedState(shape_of(harness.config(), options), {store}));
  Outcome taken;
  harness.finish(*plain, taken);
  EXPECT_EQ(taken.masters, outcome.masters);
}

}  // namespace
}  // namespace spillway::engine::delayed_update_test
