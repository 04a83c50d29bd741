// Many ranks train as one, with a GPU each: ranks that are threads of this process, on the emulated
// CUDA and NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/damaging_engine.hpp"
#include "tests/engine/ranks_harness.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::engine::gpu_ranks_test {
namespace {

using testing::ContainsRegex;
using testing::Each;
using testing::HasSubstr;
using Change = void (*)(config::TrainOptions&);

constexpr int kGpus = 4;
constexpr int kSystemError = 2;  // ncclSystemError

void in_bf16(config::TrainOptions& options) {
  options.compute = DType::bf16;
  options.state_format = StateFormat::split;
}

/// Every block passes through slots, and the next ones are gathered ahead.
void streamed(config::TrainOptions& options) {
  in_bf16(options);
  options.residency = config::Residency::none;
  options.checkpointing = config::Checkpointing::recompute;
  options.prefetch = 2;
}

/// The machine has a GPU for each rank; kernels take their time there, so that steps are small.
class GpuRanks : public testing::Test {
 protected:
  GpuRanks() { cuda_emulation::set_devices(kGpus); }
  ~GpuRanks() override {
    cuda_emulation::set_order(cuda_emulation::late);
    cuda_emulation::set_devices(1);
  }

  static Job small_job(const plan::Replicas& ranks, Change more) {
    const auto adjust = [ranks, more](config::TrainOptions& options) {
      options.gradient_accumulation_steps = kGpus / ranks.count;
      const bool fixed = ranks.sums == plan::SumOrder::fixed;
      options.rounds = fixed ? options.gradient_accumulation_steps : 1;
      options.context = 8;
      more(options);
    };
    return {.replicas = ranks, .adjust = adjust, .steps = 2};
  }
};

TEST_F(GpuRanks, HaveTheBitsOfOneInFixedOrder) {
  for (const auto& config : {tiny_gpt2(2), tiny_llama(1)}) {
    RanksHarness harness(config);
    const auto train = [&](const plan::Replicas& ranks) {
      return harness.train_job(small_job(ranks, ranks.count == 2 ? streamed : in_bf16));
    };
    const Outcome one = train({.sums = plan::SumOrder::fixed}).outcome;
    for (const std::uint32_t count : {2U, 4U}) {
      for (const plan::Sharding sharding : kShardings) {
        const JobOutcome job =
            train({.count = count, .sharding = sharding, .sums = plan::SumOrder::fixed});
        EXPECT_TRUE(job.outcome == one) << count << " ranks, " << static_cast<int>(sharding);
        EXPECT_EQ(job.sent, job.planned);
      }
    }
  }
}

TEST_F(GpuRanks, HaveTheBitsOfOneWithASecondCopyOfParameters) {
  RanksHarness harness(tiny_gpt2(2));
  plan::Replicas ranks{
      .count = 4, .sharding = plan::Sharding::parameters, .sums = plan::SumOrder::fixed};
  const Outcome one = harness.train_job(small_job({.sums = ranks.sums}, in_bf16)).outcome;
  for (const std::uint32_t node : {1U, 2U, 4U}) {
    ranks.secondary = node;
    const JobOutcome job = harness.train_job(small_job(ranks, streamed));
    EXPECT_TRUE(job.outcome == one) << node;
    EXPECT_EQ(job.sent, job.planned);
    EXPECT_EQ(job.sent_on_node, job.planned_on_node);
    EXPECT_EQ(job.sent_on_node[0] > 0_B, node > 1);
  }
}

// The emulated NCCL adds in the order of ranks, in the type itself.
TEST_F(GpuRanks, HaveEqualLossesInEveryStage) {
  RanksHarness harness(tiny_gpt2(1));
  const Outcome one = harness.train_job(small_job({}, in_bf16)).outcome;
  for (const std::uint32_t count : {2U, 4U}) {
    std::optional<Outcome> first;
    for (const plan::Sharding sharding : kShardings) {
      const JobOutcome job =
          harness.train_job(small_job({.count = count, .sharding = sharding}, streamed));
      if (!first) first = job.outcome;
      EXPECT_TRUE(job.outcome == *first) << static_cast<int>(sharding);
      EXPECT_EQ(job.sent, job.planned);
      // Gradients are rounded to 8 bits for each rank and once more in each sum of two; a step of
      // Adam moves a parameter by 3e-3 at most.
      for (std::size_t i = 0; i < one.losses.size(); ++i) {
        EXPECT_NEAR(job.outcome.losses[i], one.losses[i], 1e-2);
      }
    }
  }
}

// A wait that is missing anywhere shows as other bits in one of them.
TEST_F(GpuRanks, HaveTheSameBitsInEveryOrderOfTheStreams) {
  constexpr std::uint64_t kOrders = 12;
  RanksHarness harness(tiny_gpt2(2));
  const Change homes[] = {streamed, in_bf16};
  for (const plan::SumOrder sums : {plan::SumOrder::fast, plan::SumOrder::fixed}) {
    const auto train = [&](std::uint64_t order) {
      cuda_emulation::set_order(order);
      plan::Replicas ranks{.count = 2, .sharding = kShardings[order % 3], .sums = sums};
      const Change home = homes[order / 3 % 2];
      const bool gathers = ranks.sharding == plan::Sharding::parameters;
      if (gathers && home == streamed) ranks.secondary = 2;
      return harness.train_job(small_job(ranks, home)).outcome;
    };
    const Outcome latest = train(cuda_emulation::late);
    const std::uint64_t overtaken = cuda_emulation::statistics().overtaken;
    for (std::uint64_t order = 1; order <= kOrders / 2; ++order) {
      EXPECT_TRUE(train(order) == latest) << "order " << order;
    }
    EXPECT_GT(cuda_emulation::statistics().overtaken, overtaken);
  }
}

/// A job of three ranks, or of as many as a test says, one of which fails in its second step.
class FailingGpuRanks : public GpuRanks {
 protected:
  static constexpr std::uint32_t kRanks = 3;
  static constexpr std::uint32_t kTimeoutMs = 3000;
  using Step = std::function<void()>;

  /// Returns how each rank ends that does `body`, with a store that `adapt` changes.
  static std::vector<std::string> ends_of(
      const std::function<void(std::uint32_t, const Step&)>& body,
      const std::function<void(std::uint32_t, nvme_swap::StoreOptions&)>& adapt = {},
      const plan::Replicas& ranks = {.count = kRanks, .sharding = plan::Sharding::parameters}) {
    RanksHarness harness(tiny_gpt2(2));
    const std::filesystem::path run = harness.new_run();
    std::vector<std::string> ends(ranks.count);
    comm::ThreadGroup group(ranks.count, {.communicator = {.timeout_ms = kTimeoutMs}});
    group.run([&](comm::Communicator& self) {
      const std::uint32_t rank = self.rank().value();
      config::TrainOptions options = options_of_ranks(ranks.count, ranks.sums);
      options.gradient_accumulation_steps = 1;
      options.context = 8;
      options.state_home = config::StateHome::nvme;
      streamed(options);
      nvme_swap::StoreOptions store;
      store.directories = {run / std::to_string(rank)};
      std::filesystem::create_directories(store.directories[0]);
      if (adapt) adapt(rank, store);
      try {
        RankOfJob of_job({.replicas = ranks}, self, options);
        const auto trainer = harness.make_rank(options, store, of_job);
        trainer->cycle().initialize(
            model::RandomInitializer(harness.config(), trainer->layout(), 7));
        const data::Sampler sampler = harness.sampler(options);
        body(rank, [&] { trainer->step(harness.tokens(), sampler); });
      } catch (const std::exception& error) {
        ends[rank] = error.what();
      }
    });
    cuda_emulation::mend_nccl();
    return ends;
  }
};

TEST_F(FailingGpuRanks, EndTheOthersWithTheirName) {
  const auto ends = ends_of([](std::uint32_t rank, const Step& step) {
    step();
    if (rank == 1) throw std::runtime_error("out of paper");
    step();
  });
  EXPECT_EQ(ends[1], "out of paper");
  for (const std::uint32_t rank : {0U, 2U}) {
    EXPECT_THAT(ends[rank], HasSubstr("rank 1 has abandoned the group"));
  }
}

TEST_F(FailingGpuRanks, EndTheOthersWhenTheyHang) {
  std::latch others(2);
  const auto ends = ends_of([&](std::uint32_t rank, const Step& step) {
    step();
    if (rank == 2) return others.wait();
    const std::unique_ptr<std::latch, void (*)(std::latch*)> ended(
        &others, [](std::latch* latch) { latch->count_down(); });
    step();
  });
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_THAT(ends[rank], HasSubstr("waited 3 s for rank 2"));
    EXPECT_THAT(ends[rank], HasSubstr("all_gather (collective"));
  }
}

TEST_F(FailingGpuRanks, EndAllWhenNcclFailsInTheMiddleOfAStep) {
  const auto ends = ends_of([](std::uint32_t rank, const Step& step) {
    step();
    if (rank == 1) cuda_emulation::fail_nccl(1, kSystemError);
    step();
  });
  EXPECT_THAT(ends, Each(HasSubstr("NCCL failed on rank 1 in ")));
  EXPECT_THAT(ends, Each(HasSubstr("unhandled system error")));
}

/// Two nodes of two ranks, which keep a second copy of parameters.
constexpr plan::Replicas kNodes{.count = 4, .sharding = plan::Sharding::parameters, .secondary = 2};

TEST_F(FailingGpuRanks, EndThoseOfOtherNodesWithTheirName) {
  const auto ends = ends_of(
      [](std::uint32_t rank, const Step& step) {
        step();
        if (rank == 3) throw std::runtime_error("out of paper");
        step();
      },
      {}, kNodes);
  EXPECT_EQ(ends[3], "out of paper");
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    EXPECT_THAT(ends[rank], HasSubstr("rank 3 has abandoned the group"));
  }
}

TEST_F(FailingGpuRanks, EndAllWhenNcclFailsInTheGroupOfANode) {
  const auto ends = ends_of(
      [](std::uint32_t rank, const Step& step) {
        step();
        if (rank == 1) cuda_emulation::fail_nccl(1, kSystemError, 2);
        step();
      },
      {}, kNodes);
  EXPECT_THAT(ends, Each(ContainsRegex("NCCL failed on rank [13] in ")));
  EXPECT_THAT(ends, Each(HasSubstr("unhandled system error")));
}

/// Damages what is read from a rank's disk, but for the first tiles.
class BadDisk {
 public:
  void adapt(nvme_swap::StoreOptions& store) {
    store.adapt = [this](auto engine, const auto&) -> std::unique_ptr<nvme_swap::IoEngine> {
      return std::make_unique<DamagingEngine>(std::move(engine), [this](std::byte* target) {
        if (armed_ && ++reads_ > kGood) *target ^= std::byte{1};
      });
    };
  }
  /// What is read at the end of a step belongs to the updates of the next.
  void arm() { armed_ = true; }

 private:
  static constexpr int kGood = 2;
  std::atomic<bool> armed_{false};
  int reads_ = 0;
};

TEST_F(FailingGpuRanks, EndTheOthersWhenADiskFailsInTheMiddleOfAStep) {
  BadDisk disk;
  const auto ends = ends_of(
      [&](std::uint32_t rank, const Step& step) {
        step();
        if (rank == 1) disk.arm();
        step();
        step();
      },
      [&](std::uint32_t rank, nvme_swap::StoreOptions& store) {
        if (rank == 1) disk.adapt(store);
      });
  EXPECT_THAT(ends[1], HasSubstr(".swap"));
  for (const std::uint32_t rank : {0U, 2U}) {
    EXPECT_THAT(ends[rank], HasSubstr("rank 1 has abandoned the group"));
  }
}

/// A plan of two ops: a collective, and beside it work on the processor that fails.
class FailingWork final : public OpPerformer {
 public:
  FailingWork(comm::DeviceCommunicator& gpus, const offload::DeviceMemory& memory,
              cpu_adam::WorkerPool& workers)
      : gpus_(gpus), memory_(memory), workers_(workers) {}

  static plan::StepPlan plan() {
    plan::StepPlan plan;
    plan.ops.resize(2);
    plan.ops[0].lane = plan::Lane::net;
    plan.ops[1].lane = plan::Lane::cpu;
    return plan;
  }
  void begin(const plan::StepPlan&) override {}
  [[nodiscard]] bool skips(const plan::Op&) const override { return false; }
  void enqueue(const plan::Op&, offload::Stream& stream) override {
    const auto all = memory_.device();
    gpus_.all_reduce({all.address(), all.size()}, DType::fp32, stream.native());
  }
  [[nodiscard]] Ticket start(const plan::Op&) override {
    return workers_.submit([] { throw Error(ErrorCode::io_error, "out of paper"); });
  }

 private:
  comm::DeviceCommunicator& gpus_;
  const offload::DeviceMemory& memory_;
  cpu_adam::WorkerPool& workers_;
};

// What rank 0 has put on its stream waits for rank 1, which never comes.
TEST_F(FailingGpuRanks, DoNotWaitForAnotherThatHangs) {
  std::latch failed(1);
  std::string end;
  comm::ThreadGroup(2, {.communicator = {.timeout_ms = kTimeoutMs}})
      .run([&](comm::Communicator& self) {
        config::TrainOptions options = tiny_options();
        RankGroups ranks(&self, {.replicas = 2});
        const auto gpus = join_gpus(ranks, options);
        if (self.rank() == Rank{1}) return failed.wait();
        WakeSignal wake;
        const auto backend = make_backend(options, {64_KiB, 64_KiB, {}}, &wake);
        const offload::DeviceMemory memory(*backend, 4_KiB);
        cpu_adam::WorkerPool workers({.threads = 1, .wake = &wake});
        Streams streams(*backend, gpus.get());
        FailingWork work(*gpus, memory, workers);
        try {
          Executor(FailingWork::plan(), streams, wake).run(work);
        } catch (const Error& error) {
          end = error.what();
        }
        failed.count_down();
      });
  EXPECT_THAT(end, HasSubstr("out of paper"));
}

TEST_F(GpuRanks, AreRefusedWhereTwoHaveOneGpu) {
  cuda_emulation::set_devices(2);
  std::vector<std::string> ends(3);
  std::vector<int> indices(2);
  comm::ThreadGroup(2).run([&](comm::Communicator& self) {
    RankGroups ranks(&self, {.replicas = 2});
    indices[self.rank().value()] = gpu_of_rank(ranks, config::DeviceKind::cuda);
  });
  EXPECT_THAT(indices, testing::ElementsAre(0, 1));
  comm::ThreadGroup(3).run([&](comm::Communicator& self) {
    RankGroups ranks(&self, {.replicas = 3});
    EXPECT_EQ(gpu_of_rank(ranks, config::DeviceKind::host), 0);
    try {
      static_cast<void>(gpu_of_rank(ranks, config::DeviceKind::cuda));
    } catch (const Error& error) {
      ends[self.rank().value()] = error.what();
    }
  });
  EXPECT_THAT(ends, Each(HasSubstr("ranks 0 and 2 on ")));
  EXPECT_THAT(ends, Each(HasSubstr("have one GPU, 0000:00:00.0")));
  EXPECT_THAT(ends, Each(HasSubstr("CUDA_VISIBLE_DEVICES")));
}

}  // namespace
}  // namespace spillway::engine::gpu_ranks_test
