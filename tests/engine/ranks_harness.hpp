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
#include "runtime/engine/step/stage_groups.hpp"
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
  plan::Ranks ranks{};  ///< of a stage
  std::function<void(config::TrainOptions&)> adjust{};
  int steps = kSteps;
  config::PipelineOptions pipeline{};
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

inline config::TrainOptions options_of_job(const Job& job) {
  config::TrainOptions options = options_of_ranks(job.ranks.count, job.ranks.sums);
  options.pipeline = job.pipeline;
  if (job.adjust) job.adjust(options);
  return options;
}

/// The ends of a rank, and what it is.
struct RankOfJob {
  comm::Communicator& job;
  plan::Ranks ranks;  ///< of its stage
  std::uint32_t stage = 0;
  StageGroups groups{};
  comm::DeviceCommunicator* gpus = nullptr;

  /// Returns the group that sums gradients.
  [[nodiscard]] comm::Communicator* replicas() const {
    if (ranks.count == 1) return nullptr;
    return groups.replicas ? groups.replicas.get() : &job;
  }
};

inline plan::Grid grid_of(const Job& job) {
  return {.stages = job.pipeline.stages, .replicas = job.ranks.count};
}

inline RankOfJob rank_of_job(const Job& job, comm::Communicator& self,
                             comm::DeviceCommunicator* gpus = nullptr) {
  const plan::Grid grid = grid_of(job);
  const std::uint32_t rank = self.rank().value();
  RankOfJob result{
      .job = self, .ranks = job.ranks, .stage = grid.stage_of(rank), .groups = {}, .gpus = gpus};
  result.ranks.rank = grid.replica_of(rank);
  if (grid.stages > 1) result.groups = join_stage(self, grid);
  return result;
}

inline Bytes sent_in(const plan::StepPlan& plan, plan::RankGroup group) {
  Bytes sum;
  for (const plan::Op& op : plan.ops) {
    const bool sends = op.lane == plan::Lane::net && op.kind != plan::OpKind::receive;
    if (sends && op.group == group) sum += op.bytes;
  }
  return sum;
}

class RanksHarness : public TrainingHarness {
 public:
  using TrainingHarness::TrainingHarness;

  JobOutcome train_job(const Job& job) {
    const plan::Grid grid = grid_of(job);
    JobOutcome all;
    all.sent.resize(grid.ranks());
    all.planned.resize(grid.ranks());
    all.sent_on_node.resize(grid.ranks());
    all.planned_on_node.resize(grid.ranks());
    const std::filesystem::path run = new_run();
    all.saved = saved_by(job, run);
    std::vector<Outcome> outcomes(grid.ranks());
    comm::ThreadGroup group(grid.ranks());
    group.run([&](comm::Communicator& communicator) {
      const std::uint32_t rank = communicator.rank().value();
      config::TrainOptions options = options_of_job(job);
      const auto gpus = join_gpus(communicator, options);
      const RankOfJob self = rank_of_job(job, communicator, gpus.get());
      const auto trainer = make_rank(options, all.saved.stores[rank], self);
      if (job.from != nullptr) {
        trainer->adopt(SavedState(job.from->shape, job.from->stores));
      } else if (!job.from_run.empty()) {
        trainer->adopt(RunReader(job.from_run).saved());
      } else {
        trainer->initialize(model::RandomInitializer(config(), trainer->layout(), options.seed));
      }
      Outcome& mine = outcomes[rank];
      steps(*trainer, options, job.steps - 1, mine);
      const auto sent = [&] {
        const comm::Communicator* replicas = self.replicas();
        Bytes bytes = gpus ? gpus->sent() : replicas ? replicas->sent() : Bytes{};
        if (self.groups.stages) bytes += self.groups.stages->sent();
        return bytes;
      };
      const Bytes before = sent();
      const Bytes before_on_node = trainer->sent_on_node();
      const Bytes sums = Bytes{gpus ? 0 : trainer_sums(*trainer, grid)};
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
    // Every element is zero but on the rank that has it, or on the replicas that have it.
    const bool whole = job.ranks.sharding == plan::Sharding::none;
    for (std::uint32_t rank = 1; rank < grid.ranks(); ++rank) {
      if (whole && grid.replica_of(rank) > 0) continue;
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
                                                   const RankOfJob& rank) const {
    ModelRuntime model = make_model_runtime(config(), options, products);
    EngineSetup setup;
    setup.config = config();
    setup.options = options;
    setup.budgets = {1_GiB, 1_GiB, 1_GiB};
    setup.workload = of_stage(make_workload(config(), *model.transformer, options, rank.ranks),
                              options, rank.stage);
    setup.placement = place(config(), options, setup.workload, setup.budgets);
    setup.store_options = store;
    if (rank.job.ranks() > 1) setup.job = &rank.job;
    setup.ranks = rank.replicas();
    setup.line = rank.groups.stages.get();
    setup.gpu_ranks = rank.gpus;
    return std::make_unique<Trainer>(setup, std::move(model));
  }

 private:
  [[nodiscard]] SavedJob saved_by(const Job& job, const std::filesystem::path& run) const {
    SavedJob saved{.shape = shape_of(config(), options_of_job(job)), .stores = {}};
    for (std::uint32_t rank = 0; rank < grid_of(job).ranks(); ++rank) {
      saved.stores.emplace_back().directories = {run / std::to_string(rank)};
      saved.stores.back().owner = random_run_id();
      std::filesystem::create_directories(run / std::to_string(rank));
    }
    return saved;
  }

  /// Returns the bytes of the sums that a rank gives the others after a step: its losses and leaves
  /// to its replicas, then a number for each block and the loss to other stages.
  static std::uint64_t trainer_sums(const Trainer& trainer, const plan::Grid& grid) {
    const plan::Workload& w = trainer.workload();
    const plan::Pools pools = plan::make_pools(w, trainer.placement());
    const Bytes leaves = pools[static_cast<std::size_t>(plan::PoolKind::host_sums)].bytes();
    const std::uint64_t of_blocks = (w.blocks.size() + 1) * sizeof(double);
    return leaves.value() * (grid.replicas - 1) + of_blocks * (grid.stages - 1);
  }

  /// Returns the masters of the model's parameters, without padding; zero where another rank has
  /// them.
  static std::vector<float> masters_of(Trainer& trainer) {
    trainer.commit();
    std::vector<float> all;
    const auto& blocks = trainer.workload().blocks;
    for (std::uint32_t block = 0; block < blocks.size(); ++block) {
      std::vector<float> masters(blocks[block].padded_parameters.value());
      if (!masters.empty()) trainer.read_masters(block, masters);
      masters.resize(trainer.layout().blocks[block].parameters.value());
      all.insert(all.end(), masters.begin(), masters.end());
    }
    return all;
  }
};

inline constexpr plan::Sharding kShardings[] = {plan::Sharding::none, plan::Sharding::state,
                                                plan::Sharding::parameters};

}  // namespace spillway::engine
