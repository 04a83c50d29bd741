// The ranks of a tensor group train as one rank does, within the bounds of sums in another order:
// ranks that are threads of this process, on the host backend.
#include <gtest/gtest.h>

#include "tests/engine/ranks_harness.hpp"

namespace spillway::engine::tensor_group_test {
namespace {

using config::PipelineSchedule;

/// Of sizes that neither two nor three ranks divide.
model::ModelConfig uneven_gpt2() {
  model::ModelConfig config = tiny_gpt2(2);
  config.heads = config.kv_heads = 5;
  config.head_dim = 8;
  config.ffn_width = 99;
  return config;
}

model::ModelConfig uneven_llama() {
  model::ModelConfig config = tiny_llama();
  config.heads = 6;
  config.kv_heads = 3;
  config.head_dim = 8;
  config.ffn_width = 97;
  return config;
}

model::ModelConfig uneven_qwen3() {
  model::ModelConfig config = uneven_llama();
  config.family = model::Family::qwen3;
  config.qk_norm = true;
  config.tied_head = true;
  return config;
}

/// One of each family, with the vectors that it has and others lack.
std::vector<model::ModelConfig> models() {
  model::ModelConfig mistral = uneven_llama();
  mistral.family = model::Family::mistral;
  model::ModelConfig qwen2 = uneven_llama();
  qwen2.family = model::Family::qwen2;
  qwen2.qkv_bias = true;
  return {uneven_gpt2(), uneven_llama(), mistral, qwen2, uneven_qwen3()};
}

plan::Replicas replicas(std::uint32_t count = 1, plan::Sharding sharding = plan::Sharding::none,
                        plan::SumOrder sums = plan::SumOrder::fast) {
  return {.count = count, .sharding = sharding, .sums = sums};
}

/// Steps of 1e-3 in fp32: gradients differ by sums in other orders, 1e-6 of their size, and Adam's
/// update of an element whose gradient is that small may differ by a step.
void expect_near(const Outcome& actual, const Outcome& expected, double bound) {
  expect_close(actual, expected, bound, 100 * bound);
}

/// Of a step, of all replicas: fewer than other jobs have, as a group does much for each.
constexpr std::uint32_t kFewMicroBatches = 4;

/// A job with so many micro-batches, each a round where sums have one order.
Job with_few(Job job) {
  job.adjust = [adjust = std::move(job.adjust),
                ranks = job.replicas](config::TrainOptions& options) {
    options.gradient_accumulation_steps = kFewMicroBatches / ranks.count;
    const bool fixed = ranks.sums == plan::SumOrder::fixed;
    options.rounds = fixed ? options.gradient_accumulation_steps : 1;
    if (adjust) adjust(options);
  };
  return job;
}

void in_bf16(config::TrainOptions& options) {
  options.compute = DType::bf16;
  options.state_format = StateFormat::split;
}

Job of_group(std::uint32_t tensor) { return with_few({.replicas = replicas(), .tensor = tensor}); }

/// The ranks share out the tokens of a micro-batch, of which there are 16.
Job by_tokens(std::uint32_t tensor) {
  return with_few({.replicas = replicas(), .tensor = tensor, .sequence = true});
}

TEST(TensorGroups, TrainAsOneRank) {
  for (const auto& config : models()) {
    RanksHarness harness(config);
    const Outcome one = harness.train_job(with_few({.replicas = replicas()})).outcome;
    for (const Job& group : {of_group(2), of_group(3), by_tokens(2)}) {
      SCOPED_TRACE(testing::Message() << name_of(config.family) << " on " << group.tensor
                                      << " by tokens " << group.sequence);
      const JobOutcome job = harness.train_job(group);
      expect_near(job.outcome, one, 1e-5);
      EXPECT_EQ(job.sent, job.planned);
    }
    EXPECT_TRUE(harness.train_job(of_group(2)).outcome == harness.train_job(of_group(2)).outcome);
  }
}

TEST(TensorGroups, OfFourTrainAsOneRank) {
  model::ModelConfig config = uneven_llama();
  config.heads = 10;
  config.kv_heads = 5;  // one rank has two of them
  RanksHarness harness(config);
  const Outcome one = harness.train_job(with_few({.replicas = replicas()})).outcome;
  for (const Job& group : {of_group(4), by_tokens(4)}) {
    SCOPED_TRACE(testing::Message() << "by tokens " << group.sequence);
    const JobOutcome job = harness.train_job(group);
    expect_near(job.outcome, one, 1e-5);
    EXPECT_EQ(job.sent, job.planned);
    EXPECT_TRUE(job.outcome == harness.train_job(group).outcome);
  }
}

/// Ranks that share a key/value head all have its matrices, and add up their gradients.
TEST(TensorGroups, OfMoreRanksThanKeyHeadsTrainAsOneRank) {
  for (const std::uint32_t kv_heads : {1U, 3U}) {
    model::ModelConfig config = uneven_qwen3();
    config.kv_heads = kv_heads;
    config.qkv_bias = true;
    RanksHarness harness(config);
    const Outcome one = harness.train_job(with_few({.replicas = replicas()})).outcome;
    for (const Job& group : {of_group(4), by_tokens(4)}) {
      SCOPED_TRACE(testing::Message() << kv_heads << " by tokens " << group.sequence);
      const JobOutcome job = harness.train_job(group);
      expect_near(job.outcome, one, 1e-5);
      EXPECT_EQ(job.sent, job.planned);
    }
    const auto train = [&](std::uint32_t count, plan::Sharding sharding, config::StateHome home) {
      const auto adjust = [home](config::TrainOptions& options) {
        in_bf16(options);
        options.state_home = home;
      };
      return harness
          .train_job(with_few({.replicas = replicas(count, sharding, plan::SumOrder::fixed),
                               .adjust = adjust,
                               .tensor = 4}))
          .outcome;
    };
    using enum plan::Sharding;
    const Outcome alone = train(1, none, config::StateHome::host);
    EXPECT_TRUE(train(2, state, config::StateHome::nvme) == alone);
    EXPECT_TRUE(train(2, parameters, config::StateHome::host) == alone);
  }
}

class TensorGroupsOf : public testing::TestWithParam<bool> {};  // tokens are shared out

/// Nothing but the mathematics of the group decides its bits.
TEST_P(TensorGroupsOf, HaveTheSameBitsInEveryTier) {
  RanksHarness harness(uneven_llama());
  const auto in_two_rounds = [](config::TrainOptions& options) {
    in_bf16(options);
    options.rounds = 2;
  };
  const Job job = with_few(
      {.replicas = replicas(), .adjust = in_two_rounds, .tensor = 2, .sequence = GetParam()});
  const Outcome expected = harness.train_job(job).outcome;
  const auto with = [&](const std::function<void(config::TrainOptions&)>& change) {
    Job other = job;
    other.adjust = [=](config::TrainOptions& options) {
      job.adjust(options);
      change(options);
    };
    const JobOutcome outcome = harness.train_job(other);
    EXPECT_EQ(outcome.sent, outcome.planned);
    return outcome.outcome == expected;
  };
  EXPECT_TRUE(with([](auto& o) { o.state_home = config::StateHome::nvme; }));
  EXPECT_TRUE(with([](auto& o) { o.state_home = config::StateHome::device; }));
  EXPECT_TRUE(with([](auto& o) { o.residency = config::Residency::none; }));
  EXPECT_TRUE(with([](auto& o) { o.checkpointing = config::Checkpointing::recompute; }));
  EXPECT_TRUE(with([](auto& o) { o.checkpointing = config::Checkpointing::offload; }));
  EXPECT_TRUE(with([](auto& o) { o.activations = config::StateHome::host; }));
  EXPECT_TRUE(with([](auto& o) {
    o.activations = config::StateHome::nvme;
    o.checkpointing = config::Checkpointing::recompute;
  }));
}

struct GridCase {
  std::uint32_t tensor, replicas, stages;
  plan::Sharding sharding;
  config::StateHome boundaries = config::StateHome::device;
};

/// With one sum at a time, replicas and stages change no bit of what a group computes.
TEST_P(TensorGroupsOf, HaveTheSameBitsOnEveryGrid) {
  for (const auto& config : models()) {
    RanksHarness harness(config);
    using enum plan::Sharding;
    const auto train = [&](const GridCase& c) {
      return harness.train_job(
          with_few({.replicas = replicas(c.replicas, c.sharding, plan::SumOrder::fixed),
                    .adjust =
                        [&](config::TrainOptions& options) {
                          in_bf16(options);
                          options.activations = c.boundaries;
                        },
                    .pipeline = {.stages = c.stages},
                    .tensor = c.tensor,
                    .sequence = GetParam()}));
    };
    const Outcome expected = train({2, 1, 1, none}).outcome;
    for (const GridCase& c :
         {GridCase{2, 2, 1, none}, GridCase{2, 2, 1, state}, GridCase{2, 2, 1, parameters},
          GridCase{2, 1, 2, none}, GridCase{2, 2, 2, parameters, config::StateHome::host}}) {
      SCOPED_TRACE(testing::Message() << name_of(config.family) << " " << c.tensor << " x "
                                      << c.replicas << " x " << c.stages);
      const JobOutcome job = train(c);
      EXPECT_TRUE(job.outcome == expected);
      EXPECT_EQ(job.sent, job.planned);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokens, TensorGroupsOf, testing::Bool());

/// What one grid has saved, another goes on from: the same masters and moments, in fp32, whoever
/// had which part of them.
TEST(TensorGroups, GoOnFromWhatAnotherGridHasSaved) {
  RanksHarness harness(uneven_qwen3());
  const auto job = [](std::uint32_t tensor, std::uint32_t count, std::uint32_t stages) {
    return with_few({.replicas = replicas(count, plan::Sharding::state, plan::SumOrder::fixed),
                     .pipeline = {.stages = stages},
                     .tensor = tensor});
  };
  Job first = job(1, 1, 1);
  const Outcome expected = harness.train_job(first).outcome;
  first.steps = 1;
  const JobOutcome saved = harness.train_job(first);
  std::vector<SavedJob> chain{saved.saved};
  for (Job next : {job(3, 1, 1), job(2, 2, 1), job(5, 1, 1), job(1, 2, 1), job(4, 1, 2),
                   job(2, 1, 2), job(1, 1, 1)}) {
    next.from = &chain.back();
    next.steps = 0;
    const JobOutcome moved = harness.train_job(next);
    if (next.tensor > 1) {
      EXPECT_EQ(moved.outcome.masters, saved.outcome.masters);
    }
    chain.push_back(moved.saved);
  }
  Job last = job(1, 1, 1);
  last.from = &chain.back();
  last.steps = kSteps - 1;
  const Outcome rest = harness.train_job(last).outcome;
  EXPECT_EQ(rest.losses, std::vector(expected.losses.begin() + 1, expected.losses.end()));
  EXPECT_EQ(rest.masters, expected.masters);
}

/// Schedules with stale weights use the same older versions of them on every rank of a group.
TEST(TensorGroups, TrainOnStaleWeightsAsWithoutAGroup) {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::pipedream, PipelineSchedule::pipedream_2bw}) {
    SCOPED_TRACE(static_cast<int>(schedule));
    RanksHarness harness(uneven_gpt2());
    Job job = with_few({.replicas = replicas(),
                        .adjust =
                            [schedule](config::TrainOptions& options) {
                              if (schedule == PipelineSchedule::pipedream) {
                                options.gradient_accumulation_steps = 1;
                              }
                            },
                        .pipeline = {.stages = 2, .schedule = schedule}});
    const Outcome alone = harness.train_job(job).outcome;
    job.tensor = 2;
    const JobOutcome group = harness.train_job(job);
    expect_near(group.outcome, alone, 1e-5);
  }
}

}  // namespace
}  // namespace spillway::engine::tensor_group_test
