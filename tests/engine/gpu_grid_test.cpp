// Tensor groups and pipelines train with a GPU for each rank: ranks that are threads of this
// process, on the emulated CUDA and NCCL, against ranks on the host and against one GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/engine/ranks_harness.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::engine::gpu_grid_test {
namespace {

using config::PipelineOptions;
using testing::Each;
using testing::HasSubstr;

constexpr int kGpus = 8;
/// Of a step, of all ranks.
constexpr std::uint32_t kSmallStep = 4;

model::ModelConfig small_qwen3() {
  model::ModelConfig config = tiny_llama();
  config.family = model::Family::qwen3;
  config.qk_norm = true;
  config.tied_head = true;
  config.kv_heads = 4;
  config.ffn_width = 49;
  return config;
}

void in_bf16(config::TrainOptions& options) {
  options.compute = DType::bf16;
  options.state_format = StateFormat::split;
}

/// An fp32 that is taken for two of these is another number by far.
void in_fp16(config::TrainOptions& options) {
  options.compute = DType::fp16;
  options.loss_scale = {.dynamic = false, .initial = 256};
}

/// Every block and boundary passes through slots, and the next blocks are gathered ahead.
void streamed(config::TrainOptions& options) {
  in_bf16(options);
  options.residency = config::Residency::none;
  options.activations = config::StateHome::host;
  options.checkpointing = config::Checkpointing::recompute;
  options.prefetch = 2;
}

/// Calls `body(trainer, options)` on a rank of the job, with the model as it begins.
template <class Body>
void on_rank(RanksHarness& harness, const Job& job, comm::Communicator& self,
             const std::filesystem::path& run, const Body& body) {
  config::TrainOptions options = options_of_job(job);
  RankOfJob rank(job, self, options);
  nvme_swap::StoreOptions store;
  store.directories = {run / std::to_string(self.rank().value())};
  std::filesystem::create_directories(store.directories[0]);
  const auto trainer = harness.make_rank(options, store, rank);
  const model::ModelLayout whole = model::make_layout(harness.config(), options.operator_tile);
  trainer->cycle().initialize(model::RandomInitializer(harness.config(), whole, 1));
  body(*trainer, options);
}

/// The machine has a GPU for each rank; kernels take their time there, so that steps are small.
class GpuGrids : public testing::Test {
 protected:
  using Change = std::function<void(config::TrainOptions&)>;

  GpuGrids() { cuda_emulation::set_devices(kGpus); }
  ~GpuGrids() override {
    cuda_emulation::set_order(cuda_emulation::late);
    cuda_emulation::set_devices(1);
  }

  static Job small_job(Job job, const Change& more = {}) {
    job.steps = 2;
    job.adjust = [ranks = job.replicas, more](config::TrainOptions& options) {
      options.gradient_accumulation_steps = kSmallStep / ranks.count;
      const bool fixed = ranks.sums == plan::SumOrder::fixed;
      options.rounds = fixed ? options.gradient_accumulation_steps : 1;
      options.context = 8;
      if (more) more(options);
    };
    return job;
  }

  static Job on_the_host(const Job& job) {
    Job host = job;
    host.adjust = [adjust = job.adjust](config::TrainOptions& options) {
      adjust(options);
      options.device = config::DeviceKind::host;
    };
    return host;
  }
};

/// Products and sums of a device add in another order than the host's, as engine_gpu_test bounds
/// them; in 16 bits NCCL also rounds between ranks.
void expect_near(const Outcome& actual, const Outcome& expected, double bound) {
  expect_close(actual, expected, bound, 10 * bound);
}

TEST_F(GpuGrids, OfATensorGroupTrainAsOneGpuAndAsTheHostDo) {
  RanksHarness harness(small_qwen3());
  const Outcome one = harness.train_job(small_job({})).outcome;
  for (const bool sequence : {false, true}) {
    SCOPED_TRACE(testing::Message() << "by tokens " << sequence);
    const Job job = small_job({.tensor = 2, .sequence = sequence});
    const Outcome host = harness.train_job(on_the_host(job)).outcome;
    const JobOutcome gpus = harness.train_job(job);
    expect_near(gpus.outcome, host, 1e-4);
    expect_near(gpus.outcome, one, 1e-4);
    EXPECT_EQ(gpus.sent, gpus.planned);
    EXPECT_TRUE(harness.train_job(job).outcome == gpus.outcome);
  }
}

// Stage 3 of ZeRO among the replicas, and a tied head on another stage than the embedding; and
// parameters that replicas gather before the first step.
TEST_F(GpuGrids, WithReplicasTrainAsTheHostDoes) {
  using enum plan::Sharding;
  RanksHarness harness(small_qwen3());
  for (const Job& job :
       {small_job({.replicas = {.count = 2, .sharding = parameters},
       .pipeline = {.stages = 2},
       .tensor = 2},
                  streamed),
        small_job({.replicas = {.count = 2, .sharding = state}, .tensor = 2}, in_fp16)}) {
    SCOPED_TRACE(testing::Message() << job.pipeline.stages << " stages");
    const Outcome host = harness.train_job(on_the_host(job)).outcome;
    const JobOutcome gpus = harness.train_job(job);
    expect_near(gpus.outcome, host, 1e-2);
    EXPECT_EQ(gpus.sent, gpus.planned);
    EXPECT_GT(gpus.sent[0], 0_B);
  }
}

// A wait that is missing anywhere shows as other bits in one of them.
TEST_F(GpuGrids, HaveTheSameBitsInEveryOrderOfTheStreams) {
  constexpr std::uint64_t kOrders = 4;
  RanksHarness harness(small_qwen3());
  const Change homes[] = {streamed, in_bf16};
  for (const bool sequence : {false, true}) {
    const auto train = [&](std::uint64_t order) {
      cuda_emulation::set_order(order);
      return harness
          .train_job(small_job({.replicas = {.sums = plan::SumOrder::fixed},
                                .pipeline = {.stages = 2},
                                .tensor = 2,
                                .sequence = sequence},
                               homes[order % 2]))
          .outcome;
    };
    const Outcome latest = train(cuda_emulation::late);
    const std::uint64_t overtaken = cuda_emulation::statistics().overtaken;
    for (std::uint64_t order = 1; order <= kOrders; ++order) {
      EXPECT_TRUE(train(order) == latest) << "order " << order;
    }
    EXPECT_GT(cuda_emulation::statistics().overtaken, overtaken);
  }
}

// The tied head's stage sends back what it adds to the embedding's gradient.
TEST_F(GpuGrids, OfAPipelineHaveTheBitsOfOneGpu) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(2)}) {
    RanksHarness harness(config);
    const plan::Replicas alone{.sums = plan::SumOrder::fixed};
    const Outcome one = harness.train_job(small_job({.replicas = alone}, in_bf16)).outcome;
    plan::Replicas replicas = alone;
    replicas.count = 2;
    replicas.sharding = plan::Sharding::parameters;
    const PipelineOptions chunks{
        .stages = 2, .chunks = 2, .schedule = config::PipelineSchedule::interleaved};
    for (const Job& grid : {Job{.replicas = alone, .pipeline = {.stages = 2}},
                            Job{.replicas = alone, .pipeline = chunks},
                            Job{.replicas = replicas, .pipeline = {.stages = 2}}}) {
      SCOPED_TRACE(testing::Message() << name_of(config.family) << " " << grid.pipeline.chunks
                                      << " chunks, " << grid.replicas.count << " replicas");
      const JobOutcome job =
          harness.train_job(small_job(grid, grid.pipeline.chunks > 1 ? in_bf16 : streamed));
      EXPECT_TRUE(job.outcome == one);
      EXPECT_EQ(job.sent, job.planned);
    }
  }
}

TEST_F(GpuGrids, EvaluateAsTheHostDoes) {
  RanksHarness harness(small_qwen3());
  const std::filesystem::path text = harness.new_run();
  write_tokens(text, harness.config().vocab_size, 100);
  const data::TokenFile tokens(text, data::TokenType::uint16);
  const auto evaluation_of = [&](const Job& job) {
    const plan::Grid grid = grid_of(job);
    std::vector<double> losses(grid.ranks());
    const std::filesystem::path run = harness.new_run();
    comm::ThreadGroup(grid.ranks()).run([&](comm::Communicator& self) {
      on_rank(harness, job, self, run, [&](Trainer& trainer, const config::TrainOptions&) {
        losses[self.rank().value()] = trainer.evaluate(tokens).loss;
      });
    });
    return losses;
  };
  const Job job = small_job({.pipeline = {.stages = 2}, .tensor = 2});
  const std::vector<double> host = evaluation_of(on_the_host(job));
  const std::vector<double> gpus = evaluation_of(job);
  EXPECT_THAT(gpus, Each(gpus[0]));
  EXPECT_NEAR(gpus[0], host[0], 1e-4 * host[0]);
}

TEST_F(GpuGrids, EndTheOthersWithTheNameOfOneThatFails) {
  RanksHarness harness(small_qwen3());
  const Job job = small_job({.pipeline = {.stages = 2}, .tensor = 2}, streamed);
  const std::filesystem::path run = harness.new_run();
  std::vector<std::string> ends(grid_of(job).ranks());
  comm::ThreadGroup group(grid_of(job).ranks(), {.communicator = {.timeout_ms = 30'000}});
  group.run([&](comm::Communicator& self) {
    std::string& end = ends[self.rank().value()];
    try {
      on_rank(harness, job, self, run, [&](Trainer& trainer, const config::TrainOptions& options) {
        Outcome outcome;
        harness.steps(trainer, options, 1, outcome);
        if (self.rank() == Rank{2}) throw std::runtime_error("out of paper");
        harness.steps(trainer, options, 1, outcome);
      });
    } catch (const std::exception& error) {
      end = error.what();
    }
  });
  EXPECT_EQ(ends[2], "out of paper");
  for (const std::uint32_t rank : {0U, 1U, 3U}) {
    EXPECT_THAT(ends[rank], HasSubstr("rank 2 has abandoned the group"));
  }
}

}  // namespace
}  // namespace spillway::engine::gpu_grid_test
