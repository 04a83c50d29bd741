// Updates ahead of their decision, kept and undone: the bits of a run without them, whatever is
// clipped or skipped, and whenever it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "nvme_swap/failing_engine.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::speculation_test {
namespace {

using plan::Tier;
using testing::Contains;
using testing::Key;

constexpr int kSteps = 24;

struct Way {
  StateFormat format;
  std::uint32_t blocks;  ///< the last ones, updated ahead
  std::uint32_t slots;   ///< of staging
  Tier parameters;
};

/// What the steps of a run have done with updates ahead, by how often.
using Counts = std::map<UpdatesAhead, int>;

class Speculation : public testing::TestWithParam<Way> {
 protected:
  Speculation() : harness_(tiny_llama(3)), options_(tiny_options()) {
    options_.compute = DType::bf16;
    options_.state_format = GetParam().format;
    options_.state_home = config::StateHome::nvme;
    // Between the norms of this run, so that some steps are clipped and some are not.
    options_.gradient_clipping = 1.5;
  }

  void speculate() {
    harness_.adjust_placement = [](const plan::Workload&, plan::Placement& placement) {
      placement.speculative_blocks = GetParam().blocks;
      placement.state_slots = GetParam().slots;
      for (plan::BlockCut& block : placement.blocks) block.parameters = GetParam().parameters;
    };
  }

  /// The run whose state stays in memory.
  Outcome in_memory(int steps = kSteps) {
    config::TrainOptions options = options_;
    options.state_home = config::StateHome::host;
    return harness_.train(options, steps);
  }

  void steps(Trainer& trainer, int count, Outcome& outcome) {
    const data::Sampler sampler = harness_.sampler(options_);
    for (int i = 0; i < count; ++i) {
      const auto results = trainer.step(harness_.tokens(), sampler);
      for (const StepResult& result : results) ++counts_[result.ahead];
      TrainingHarness::add(results, outcome);
    }
  }

  TrainingHarness harness_;
  config::TrainOptions options_;
  Counts counts_;
};

TEST_P(Speculation, HasTheBitsOfARunInMemoryWhateverIsClipped) {
  const Outcome plain = in_memory();
  speculate();
  Outcome outcome;
  const auto trainer = harness_.make(options_, harness_.new_run());
  steps(*trainer, kSteps, outcome);
  harness_.finish(*trainer, outcome);
  EXPECT_EQ(outcome, plain);
  for (const UpdatesAhead ahead :
       {UpdatesAhead::kept, UpdatesAhead::undone, UpdatesAhead::paused}) {
    EXPECT_THAT(counts_, Contains(Key(ahead))) << static_cast<int>(ahead);
  }
}

TEST_P(Speculation, GoesOnFromTheLastCommitAfterAnEndAtAnyStep) {
  const Outcome plain = in_memory();
  speculate();
  // Each process ends without a commit of its last step, as one that is killed behind a step.
  const std::filesystem::path run = harness_.new_run();
  Outcome outcome;
  for (const int count : {5, 6, 7, 4}) {
    const auto trainer = harness_.make(options_, run, !outcome.losses.empty());
    outcome.losses.resize(trainer->state().step);
    outcome.norms.resize(trainer->state().step);
    steps(*trainer, count, outcome);
  }
  const auto trainer = harness_.make(options_, run, true);
  outcome.losses.resize(trainer->state().step);
  outcome.norms.resize(trainer->state().step);
  steps(*trainer, kSteps - static_cast<int>(trainer->state().step), outcome);
  harness_.finish(*trainer, outcome);
  EXPECT_EQ(outcome, plain);
  EXPECT_THAT(counts_, Contains(Key(UpdatesAhead::kept)));
}

TEST_P(Speculation, GoesOnFromTheLastCommitAfterAnErrorAtAnyWrite) {
  options_.gradient_clipping = 1e6;  // so that the step with the error updates ahead
  const Outcome plain = in_memory(8);
  speculate();
  nvme_swap::FailingEngine* disk = nullptr;
  harness_.adjust_store = [&](nvme_swap::StoreOptions& store) {
    store.adapt = [&](auto engine, const auto& options) {
      auto failing = std::make_unique<nvme_swap::FailingEngine>(std::move(engine), options);
      disk = failing.get();
      return failing;
    };
  };
  std::uint64_t n = 1;
  for (bool failed = true; failed; n += 3) {
    const std::filesystem::path run = harness_.new_run();
    Outcome outcome;
    failed = false;
    {
      const auto trainer = harness_.make(options_, run);
      steps(*trainer, 6, outcome);
      disk->arm({.operation = nvme_swap::IoOperation::write, .first = n});
      try {
        steps(*trainer, 1, outcome);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io_error) << error.what();
        EXPECT_FALSE(trainer->cycle().is_sound());
        failed = true;
      }
      disk->disarm();
    }
    const auto trainer = harness_.make(options_, run, true);
    outcome.losses.resize(trainer->state().step);
    outcome.norms.resize(trainer->state().step);
    steps(*trainer, 8 - static_cast<int>(trainer->state().step), outcome);
    harness_.finish(*trainer, outcome);
    ASSERT_EQ(outcome, plain) << "write " << n;
  }
  EXPECT_GT(n, 3U);
}

TEST_P(Speculation, LeavesEvaluationsAndCopiesTheStateOfTheirStep) {
  const Outcome plain = in_memory();
  config::TrainOptions in_host = options_;
  in_host.state_home = config::StateHome::host;
  const auto other = harness_.make(in_host, harness_.new_run());
  speculate();
  const auto trainer = harness_.make(options_, harness_.new_run());
  Outcome outcome;
  Outcome expected;
  for (int i = 0; i < kSteps; ++i) {
    steps(*trainer, 1, outcome);
    harness_.steps(*other, in_host, 1, expected);
    if (i % 5 == 3) {
      EXPECT_EQ(trainer->evaluate(harness_.tokens()).loss, other->evaluate(harness_.tokens()).loss);
    }
    if (i % 7 != 5) continue;
    nvme_swap::StoreOptions store;
    store.directories = {harness_.new_run()};
    std::filesystem::create_directories(store.directories.front());
    trainer->cycle().commits().copy_next(store);
    steps(*trainer, 1, outcome);
    harness_.steps(*other, in_host, 1, expected);
    ++i;
    EXPECT_EQ(trainer->cycle().commits().copied_step(), static_cast<std::uint64_t>(i));
  }
  harness_.finish(*trainer, outcome);
  harness_.finish(*other, expected);
  EXPECT_EQ(outcome, expected);
  EXPECT_EQ(expected.masters, plain.masters);
  EXPECT_THAT(counts_, Contains(Key(UpdatesAhead::kept)));
}

INSTANTIATE_TEST_SUITE_P(Ways, Speculation,
                         testing::Values(Way{StateFormat::split, 2, 4, Tier::host},
                                         Way{StateFormat::fp32, 5, 16, Tier::host},
                                         Way{StateFormat::split, 5, 2, Tier::device},
                                         Way{StateFormat::int8, 3, 8, Tier::device},
                                         Way{StateFormat::bf16, 1, 1, Tier::host}),
                         [](const auto& way) {
                           return std::string(name_of(way.param.format)) + "_blocks_" +
                                  std::to_string(way.param.blocks) + "_slots_" +
                                  std::to_string(way.param.slots);
                         });

/// Gradients in fp16 overflow each time that the loss scale has grown too far.
TEST(SpeculationInFp16, HasTheBitsOfARunInMemoryWhateverOverflows) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = tiny_options();
  options.compute = DType::fp16;
  options.loss_scale.window = 4;
  options.loss_scale.hysteresis = 1;
  options.gradient_clipping = 0;
  options.state_home = config::StateHome::host;
  const Outcome plain = harness.train(options, kSteps);
  options.state_home = config::StateHome::nvme;
  harness.adjust_placement = [](const plan::Workload&, plan::Placement& placement) {
    placement.speculative_blocks = 3;
  };
  const auto trainer = harness.make(options, harness.new_run());
  const data::Sampler sampler = harness.sampler(options);
  Outcome outcome;
  Counts counts;
  for (int i = 0; i < kSteps; ++i) {
    const auto results = trainer->step(harness.tokens(), sampler);
    ++counts[results.front().ahead];
    TrainingHarness::add(results, outcome);
  }
  harness.finish(*trainer, outcome);
  EXPECT_EQ(outcome, plain);
  EXPECT_GT(trainer->state().skipped, 0U);
  EXPECT_THAT(counts, Contains(Key(UpdatesAhead::kept)));
  EXPECT_THAT(counts, Contains(Key(UpdatesAhead::undone)));
}

}  // namespace
}  // namespace spillway::engine::speculation_test
