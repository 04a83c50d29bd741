// Ranks that are threads of this process, on the host backend or on a GPU each: a job of them
// trains, and another may go on from what it has saved.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/device_communicator.hpp"
#include "comm/threads/thread_group.hpp"
#include "runtime/base/cuda_library_directories.hpp"
#include "runtime/engine/rank_agreement.hpp"
#include "runtime/engine/run/reader.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine {

inline constexpr int kSteps = 3;
/// Of a step, of all ranks: a number that 1, 2, 3, 4 and 8 divide.
inline constexpr std::uint32_t kMicroBatches = 24;

inline config::TrainOptions options_of_ranks(std::uint32_t ranks, plan::SumOrder sums) {
  config::TrainOptions options = tiny_options();
  options.micro_batch = 1;
  options.gradient_accumulation_steps = kMicroBatches / ranks;
  options.rounds = sums == plan::SumOrder::fixed ? options.gradient_accumulation_steps : 1;
  options.threads = 1;
  options.state_home = config::StateHome::host;
  return options;
}

/// What a job has committed: what a `SavedState` takes.
struct SavedJob {
  SavedShape shape;
  std::vector<nvme_swap::StoreOptions> stores;  ///< by rank
};

struct Job {
  plan::Ranks ranks{};
  std::function<void(config::TrainOptions&)> adjust{};
  int steps = kSteps;
  const SavedJob* from = nullptr;    ///< it goes on from this, and else from random numbers
  std::filesystem::path from_run{};  ///< or from this run
};

/// Gives the rank of a job a GPU, if `options` choose one, and joins it to the others; else null.
inline std::unique_ptr<comm::DeviceCommunicator> join_gpus(comm::Communicator& communicator,
                                                           config::TrainOptions& options) {
  if (options.device != config::DeviceKind::cuda || communicator.ranks() == 1) return nullptr;
  options.device_index = gpu_of_rank(communicator, *options.device);
  return std::make_unique<comm::DeviceCommunicator>(
      communicator,
      comm::DeviceCommunicatorOptions{.library_directories = cuda_library_directories()});
}

/// What the ranks of a job leave behind: all say the same of losses and norms, and each has its
/// shards of the masters.
struct JobOutcome {
  Outcome outcome;
  std::vector<Bytes> sent;  ///< by rank, in one step
  std::vector<Bytes> planned;
  std::vector<Bytes> sent_on_node;  ///< likewise, to the ranks that keep parameters together
  std::vector<Bytes> planned_on_node;
  SavedJob saved;
};

inline Bytes sent_in(const plan::StepPlan& plan, plan::RankGroup group) {
  Bytes sum;
  for (const plan::Op& op : plan.ops) {
    if (op.lane == plan::Lane::net && op.group == group) sum += op.bytes;
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
    all.sent_on_node.resize(job.ranks.count);
    all.planned_on_node.resize(job.ranks.count);
    const std::filesystem::path run = new_run();
    all.saved = saved_by(job, run);
    std::vector<Outcome> outcomes(job.ranks.count);
    comm::ThreadGroup group(job.ranks.count);
    group.run([&](comm::Communicator& communicator) {
      const std::uint32_t rank = communicator.rank().value();
      plan::Ranks ranks = job.ranks;
      ranks.rank = rank;
      config::TrainOptions options = options_of_ranks(ranks.count, ranks.sums);
      if (job.adjust) job.adjust(options);
      const auto gpus = join_gpus(communicator, options);
      const auto trainer =
          make_rank(options, all.saved.stores[rank], ranks, communicator, gpus.get());
      if (job.from != nullptr) {
        trainer->adopt(SavedState(job.from->shape, job.from->stores));
      } else if (!job.from_run.empty()) {
        trainer->adopt(RunReader(job.from_run).saved());
      } else {
        trainer->initialize(model::RandomInitializer(config(), trainer->layout(), options.seed));
      }
      Outcome& mine = outcomes[rank];
      steps(*trainer, options, job.steps - 1, mine);
      const auto sent = [&] { return gpus ? gpus->sent() : communicator.sent(); };
      const Bytes before = sent();
      const Bytes before_on_node = trainer->sent_on_node();
      const Bytes sums = Bytes{gpus ? 0 : trainer_sums(*trainer) * (ranks.count - 1)};
      if (job.steps > 0) steps(*trainer, options, 1, mine);
      all.sent[rank] = sent() - before - sums;
      all.planned[rank] = sent_in(trainer->step_plan(), plan::RankGroup::all);
      all.sent_on_node[rank] = trainer->sent_on_node() - before_on_node;
      all.planned_on_node[rank] = sent_in(trainer->step_plan(), plan::RankGroup::node);
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

  [[nodiscard]] std::unique_ptr<Trainer> make_rank(const config::TrainOptions& options,
                                                   const nvme_swap::StoreOptions& store,
                                                   const plan::Ranks& ranks,
                                                   comm::Communicator& communicator,
                                                   comm::DeviceCommunicator* gpus = nullptr) const {
    ModelRuntime model = make_model_runtime(config(), options, products);
    EngineSetup setup;
    setup.config = config();
    setup.options = options;
    setup.budgets = {1_GiB, 1_GiB, 1_GiB};
    setup.workload = make_workload(config(), *model.transformer, options, ranks);
    setup.placement = place(config(), options, setup.workload, setup.budgets);
    setup.store_options = store;
    if (ranks.count > 1) setup.ranks = &communicator;
    setup.gpu_ranks = gpus;
    return std::make_unique<Trainer>(setup, std::move(model));
  }

 private:
  [[nodiscard]] SavedJob saved_by(const Job& job, const std::filesystem::path& run) const {
    config::TrainOptions options = options_of_ranks(job.ranks.count, job.ranks.sums);
    if (job.adjust) job.adjust(options);
    SavedJob saved{.shape = shape_of(config(), options), .stores = {}};
    for (std::uint32_t rank = 0; rank < job.ranks.count; ++rank) {
      saved.stores.emplace_back().directories = {run / std::to_string(rank)};
      saved.stores.back().owner = random_run_id();
      std::filesystem::create_directories(run / std::to_string(rank));
    }
    return saved;
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

inline constexpr plan::Sharding kShardings[] = {plan::Sharding::none, plan::Sharding::state,
                                                plan::Sharding::parameters};

}  // namespace spillway::engine
