// Ranks that are threads of this process, on the host backend or on a GPU each: a job of them
// trains, and another may go on from what it has saved.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/device_communicator.hpp"
#include "comm/threads/thread_group.hpp"
#include "runtime/base/cuda_library_directories.hpp"
#include "runtime/engine/prepare/stage_layers.hpp"
#include "runtime/engine/ranks/rank_agreement.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
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
  plan::Replicas replicas{};  ///< of a stage
  std::function<void(config::TrainOptions&)> adjust{};
  int steps = kSteps;
  config::PipelineOptions pipeline{};
  std::uint32_t tensor = 1;          ///< ranks of a tensor group
  bool sequence = false;             ///< which share out tokens
  const SavedJob* from = nullptr;    ///< it goes on from this, and else from random numbers
  std::filesystem::path from_run{};  ///< or from this run
};

/// Gives the rank of a job a GPU, if `options` choose one, and joins it to the others; else null.
inline std::unique_ptr<comm::DeviceCommunicator> join_gpus(RankGroups& ranks,
                                                           config::TrainOptions& options) {
  if (options.device != config::DeviceKind::cuda || ranks.alone()) return nullptr;
  options.device_index = gpu_of_rank(ranks, *options.device);
  return std::make_unique<comm::DeviceCommunicator>(
      *ranks.host(plan::RankGroup::job),
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

/// Losses may differ by `bound` of their size, norms by ten times that, and all masters together by
/// `of_masters`.
inline void expect_close(const Outcome& actual, const Outcome& expected, double bound,
                         double of_masters) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < actual.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], bound * expected.losses[i]);
    EXPECT_NEAR(actual.norms[i], expected.norms[i], 10 * bound * expected.norms[i]);
  }
  ASSERT_EQ(actual.masters.size(), expected.masters.size());
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < actual.masters.size(); ++i) {
    difference += std::pow(static_cast<double>(actual.masters[i]) - expected.masters[i], 2);
    size += std::pow(static_cast<double>(expected.masters[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / size), of_masters);
}

inline config::TrainOptions options_of_job(const Job& job) {
  config::TrainOptions options = options_of_ranks(job.replicas.count, job.replicas.sums);
  options.pipeline = job.pipeline;
  options.tensor.ranks = job.tensor;
  options.tensor.sequence = job.sequence;
  if (job.adjust) job.adjust(options);
  return options;
}

inline plan::Grid grid_of(const Job& job) {
  return {.stages = job.pipeline.stages, .replicas = job.replicas.count, .tensor = job.tensor};
}

/// A rank of a job, which has joined the others.
class RankOfJob {
 public:
  /// `options` become those of this rank.
  RankOfJob(const Job& job, comm::Communicator& self, config::TrainOptions& options)
      : groups_(&self, grid_of(job)), of_stage_(job.replicas) {
    groups_.join(of_stage_.secondary, join_gpus(groups_, options));
  }

  [[nodiscard]] RankGroups& groups() { return groups_; }
  [[nodiscard]] std::uint32_t stage() const { return groups_.place().stage(); }
  [[nodiscard]] const plan::Replicas& of_stage() const { return of_stage_; }

 private:
  RankGroups groups_;
  plan::Replicas of_stage_;
};

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
      RankOfJob self(job, communicator, options);
      const auto trainer = make_rank(options, all.saved.stores[rank], self);
      if (job.from != nullptr) {
        trainer->cycle().adopt(SavedState(job.from->shape, job.from->stores));
      } else if (!job.from_run.empty()) {
        trainer->cycle().adopt(RunReader(job.from_run).saved());
      } else {
        const model::ModelLayout whole = model::make_layout(config(), options.operator_tile);
        trainer->cycle().initialize(model::RandomInitializer(config(), whole, options.seed));
      }
      Outcome& mine = outcomes[rank];
      steps(*trainer, options, job.steps - 1, mine);
      using Group = plan::RankGroup;
      const RankGroups& groups = self.groups();
      const auto sent = [&] {
        return groups.sent(Group::replicas) + groups.sent(Group::stages) +
               groups.sent(Group::tensor);
      };
      const Bytes before = sent();
      const Bytes before_on_node = groups.sent(Group::node);
      const Bytes sums = Bytes{groups.gpu(Group::job) ? 0 : trainer_sums(*trainer, grid)};
      if (job.steps > 0) steps(*trainer, options, 1, mine);
      all.sent[rank] = sent() - before - sums;
      const plan::StepPlan& plan = trainer->cycle().lists().step_plan();
      all.planned[rank] = sent_in(plan, Group::replicas) + sent_in(plan, Group::stages) +
                          sent_in(plan, Group::tensor);
      all.sent_on_node[rank] = groups.sent(Group::node) - before_on_node;
      all.planned_on_node[rank] = sent_in(plan, Group::node);
      mine.masters = masters_of(*trainer);
    });
    for (const Outcome& other : outcomes) {
      const Outcome& first = outcomes[0];
      EXPECT_TRUE(
          (Outcome{other.losses, other.norms, {}} == Outcome{first.losses, first.norms, {}}))
          << testing::PrintToString(other.losses) << " and "
          << testing::PrintToString(first.losses);
    }
    all.outcome = outcomes[0];
    if (grid.tensor > 1) {
      all.outcome.masters = masters_of(all.saved);
      return all;
    }
    // Every element is zero but on the rank that has it, or on the replicas that have it.
    const bool whole = job.replicas.sharding == plan::Sharding::none;
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
                                                   RankOfJob& rank,
                                                   Start start = Start::anew) const {
    ModelRuntime model = make_model_runtime(
        config(), options,
        {.products = products, .tensor_index = rank.groups().place().tensor_index()});
    const plan::Budgets budgets{1_GiB, 1_GiB, 1_GiB};
    const plan::Workload workload =
        of_stage(make_workload(config(), *model.transformer, options, rank.of_stage()), options,
                 rank.stage());
    EngineSetup setup{.config = config(),
                      .plan = {.options = options,
                               .workload = workload,
                               .budgets = budgets,
                               .placement = place(config(), options, workload, budgets),
                               .commit_every = options.commit_every},
                      .store = {.options = store, .start = start},
                      .ranks = &rank.groups()};
    return std::make_unique<Trainer>(std::move(setup), std::move(model));
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
    const plan::Workload& w = trainer.engine().workload();
    const plan::Pools pools = plan::make_pools(w, trainer.engine().placement());
    const Bytes leaves = pools[static_cast<std::size_t>(plan::PoolKind::host_leaves)].bytes();
    const std::uint64_t of_blocks = (w.blocks.size() + 1) * sizeof(double);
    return leaves.value() * (grid.replicas - 1) + of_blocks * (grid.stages - 1 + (grid.tensor - 1));
  }

  /// Returns the masters of the whole model, as a tensor group has saved them.
  static std::vector<float> masters_of(const SavedJob& job) {
    const SavedState saved(job.shape, job.stores);
    std::vector<float> all;
    const auto& blocks = model::make_layout(job.shape.model).blocks;
    for (std::uint32_t block = 0; block < blocks.size(); ++block) {
      std::vector<float> masters(blocks[block].parameters.value());
      saved.read(BlockIndex{block}, ElementCount{}, {.master = masters, .m = {}, .v = {}});
      all.insert(all.end(), masters.begin(), masters.end());
    }
    return all;
  }

  /// Returns the masters of the model's parameters, without padding; zero where another rank has
  /// them.
  static std::vector<float> masters_of(Trainer& trainer) {
    trainer.cycle().commit();
    std::vector<float> all;
    const auto& blocks = trainer.engine().workload().blocks;
    for (std::uint32_t block = 0; block < blocks.size(); ++block) {
      std::vector<float> masters(blocks[block].padded_parameters.value());
      if (!masters.empty()) trainer.cycle().read_masters(block, masters);
      masters.resize(trainer.layout().blocks[block].parameters.value());
      all.insert(all.end(), masters.begin(), masters.end());
    }
    return all;
  }
};

inline constexpr plan::Sharding kShardings[] = {plan::Sharding::none, plan::Sharding::state,
                                                plan::Sharding::parameters};

}  // namespace spillway::engine
