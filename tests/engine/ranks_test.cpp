// Many ranks train as one: ranks that are threads of this process, on the host backend.
#include <gtest/gtest.h>

#include <mutex>

#include "comm/threads/thread_group.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine {
namespace {

constexpr int kSteps = 3;
/// Of a step, of all ranks: a number that 1, 2, 3, 4 and 8 divide.
constexpr std::uint32_t kMicroBatches = 24;

config::TrainOptions options_of_ranks(std::uint32_t ranks, plan::SumOrder sums) {
  config::TrainOptions options = tiny_options();
  options.micro_batch = 1;
  options.gradient_accumulation_steps = kMicroBatches / ranks;
  options.rounds = sums == plan::SumOrder::fixed ? options.gradient_accumulation_steps : 1;
  options.threads = 1;
  options.state_home = config::StateHome::host;
  return options;
}

struct Job {
  plan::Ranks ranks{};
  std::function<void(config::TrainOptions&)> adjust{};
};

/// What the ranks of a job leave behind: all say the same of losses and norms, and each has its
/// shards of the masters.
struct JobOutcome {
  Outcome outcome;
  std::vector<Bytes> sent;  ///< by rank, in one step
  std::vector<Bytes> planned;
};

Bytes sent_in(const plan::StepPlan& plan) {
  Bytes sum;
  for (const plan::Op& op : plan.ops) {
    if (op.lane == plan::Lane::net) sum += op.bytes;
  }
  return sum;
}

class RanksHarness : public TrainingHarness {
 public:
  using TrainingHarness::TrainingHarness;

  JobOutcome train_job(const Job& job) {
    JobOutcome all;
    all.sent.resize(job.ranks.count);
    all.planned.resize(job.ranks.count);
    std::vector<Outcome> outcomes(job.ranks.count);
    std::vector<std::vector<std::pair<std::uint64_t, std::vector<float>>>> shards(job.ranks.count);
    comm::ThreadGroup group(job.ranks.count);
    const std::filesystem::path run = new_run();
    group.run([&](comm::Communicator& communicator) {
      const std::uint32_t rank = communicator.rank().value();
      plan::Ranks ranks = job.ranks;
      ranks.rank = rank;
      config::TrainOptions options = options_of_ranks(ranks.count, ranks.sums);
      if (job.adjust) job.adjust(options);
      const auto trainer = make_rank(options, run / std::to_string(rank), ranks, communicator);
      Outcome& mine = outcomes[rank];
      steps(*trainer, options, kSteps - 1, mine);
      const Bytes before = communicator.sent();
      const Bytes sums = Bytes{trainer_sums(*trainer) * (ranks.count - 1)};
      steps(*trainer, options, 1, mine);
      all.sent[rank] = communicator.sent() - before - sums;
      all.planned[rank] = sent_in(trainer->step_plan());
      mine.masters = masters_of(*trainer);
    });
    for (const Outcome& other : outcomes) {
      EXPECT_EQ(other.losses, outcomes[0].losses);
      EXPECT_EQ(other.norms, outcomes[0].norms);
    }
    all.outcome = outcomes[0];
    if (job.ranks.sharding == plan::Sharding::none) return all;
    // Every element is zero but on the rank that has it.
    for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
      for (std::size_t i = 0; i < all.outcome.masters.size(); ++i) {
        const float value = outcomes[rank].masters[i];
        if (value != 0) {
          EXPECT_EQ(all.outcome.masters[i], 0.0F);
          all.outcome.masters[i] = value;
        }
      }
    }
    return all;
  }

 private:
  [[nodiscard]] std::unique_ptr<Trainer> make_rank(const config::TrainOptions& options,
                                                   const std::filesystem::path& folder,
                                                   const plan::Ranks& ranks,
                                                   comm::Communicator& communicator) const {
    ModelRuntime model = make_model_runtime(config(), options, products);
    EngineSetup setup;
    setup.config = config();
    setup.options = options;
    setup.budgets = {1_GiB, 1_GiB, 1_GiB};
    setup.workload = make_workload(config(), *model.transformer, options, ranks);
    setup.placement = place(config(), options, setup.workload, setup.budgets);
    setup.store_options.directories = {folder};
    std::filesystem::create_directories(folder);
    if (ranks.count > 1) setup.ranks = &communicator;
    auto trainer = std::make_unique<Trainer>(setup, std::move(model));
    trainer->initialize(model::RandomInitializer(config(), trainer->layout(), options.seed));
    return trainer;
  }

  /// Returns the bytes of the sums that a rank gives the others after a step.
  static std::uint64_t trainer_sums(const Trainer& trainer) {
    const plan::Workload& w = trainer.workload();
    return plan::make_pools(
               w, trainer.placement())[static_cast<std::size_t>(plan::PoolKind::host_sums)]
        .bytes()
        .value();
  }

  /// Returns the masters of the model's parameters, without padding; zero where another rank has
  /// them.
  static std::vector<float> masters_of(Trainer& trainer) {
    trainer.commit();
    std::vector<float> all;
    const auto& blocks = trainer.workload().blocks;
    for (std::uint32_t block = 0; block < blocks.size(); ++block) {
      std::vector<float> masters(blocks[block].padded_parameters.value());
      trainer.read_masters(block, masters);
      masters.resize(blocks[block].parameters.value());
      all.insert(all.end(), masters.begin(), masters.end());
    }
    return all;
  }
};

constexpr plan::Sharding kShardings[] = {plan::Sharding::none, plan::Sharding::state,
                                         plan::Sharding::parameters};

class Ranks : public testing::TestWithParam<std::uint32_t> {};

TEST_P(Ranks, HaveTheBitsOfOneInFixedOrder) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(1)}) {
    RanksHarness harness(config);
    const auto bf16 = [](config::TrainOptions& options) {
      options.compute = DType::bf16;
      options.state_format = StateFormat::split;
    };
    const Outcome one =
        harness.train_job({.ranks = {.sums = plan::SumOrder::fixed}, .adjust = bf16}).outcome;
    for (const plan::Sharding sharding : kShardings) {
      const JobOutcome job = harness.train_job(
          {.ranks = {.count = GetParam(), .sharding = sharding, .sums = plan::SumOrder::fixed},
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
        harness.train_job({.ranks = {.count = GetParam(), .sharding = sharding}});
    if (!first) first = job.outcome;
    EXPECT_TRUE(job.outcome == *first) << static_cast<int>(sharding);
    EXPECT_EQ(job.sent, job.planned);
    // Sums of 24 micro-batches in another order: each of fp32's roundings is 6e-8.
    for (std::size_t i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(job.outcome.losses[i], one.losses[i], 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, Ranks, testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace spillway::engine
