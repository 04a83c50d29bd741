// The plan on paper is the plan that trains: jobs of `spillway train` of 49 kinds, and beside each
// rank a plan for its place in the grid, made without any rank, from the budgets and rates that the
// job has found. Every operation is compared.
#include "runtime/engine/prepare/planner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/threads/thread_group.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/train_loop.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::planner_test {
namespace {

using Adjust = void (*)(config::TrainOptions&);

struct GridCase {
  const char* name;
  plan::Grid grid;
  std::uint32_t zero_stage = 0;
};

constexpr GridCase kGrids[] = {
    {"OneRank", {}},
    {"Replicas", {.replicas = 2}},
    {"ReplicasThatShareState", {.replicas = 2}, 1},
    {"ReplicasThatShareParameters", {.replicas = 2}, 3},
    {"Stages", {.stages = 2}},
    {"ATensorGroup", {.tensor = 2}},
    {"StagesOfTensorGroups", {.stages = 2, .tensor = 2}},
};

const std::pair<const char*, Adjust> kAdjustments[] = {
    {"in bf16", [](config::TrainOptions& o) { o.compute = DType::bf16; }},
    {"state on disk", [](config::TrainOptions& o) { o.state_home = config::StateHome::nvme; }},
    {"boundaries on disk",
     [](config::TrainOptions& o) { o.activations = config::StateHome::nvme; }},
    {"streamed",
     [](config::TrainOptions& o) {
       o.residency = config::Residency::none;
       o.checkpointing = config::Checkpointing::recompute;
       o.prefetch = 2;
     }},
    {"saved activations on the host",
     [](config::TrainOptions& o) { o.checkpointing = config::Checkpointing::offload; }},
    {"in int8",
     [](config::TrainOptions& o) {
       o.compute = DType::bf16;
       o.state_format = StateFormat::int8;
     }},
    {"the rounds are open", [](config::TrainOptions& o) { o.automatic.rounds = true; }},
};

/// What a rank of a job was planned with, and what for.
struct Trained final : TrainObserver {
  void planned(const TrainPlan& made) override {
    plan = made.plan;
    operations = plan::to_text(made.step);
  }
  void stepped(const StepResult& /*result*/, const StepUse& /*use*/) override {}
  void evaluated(std::uint64_t /*step*/, const Evaluation& /*evaluation*/) override {}
  void saved(std::uint64_t /*step*/, const std::filesystem::path& /*checkpoint*/) override {}
  void noted(const std::string& /*text*/) override {}

  Planned plan;
  std::string operations;
};

/// The machine that a job has found.
class FoundMachine final : public PlanningMachine {
 public:
  explicit FoundMachine(const Planned& found) : found_(found) {}

  [[nodiscard]] plan::Budgets budgets(const config::TrainOptions& /*options*/,
                                      const plan::Workload& /*workload*/) override {
    return found_.budgets;
  }
  [[nodiscard]] plan::MachineProfile profile(const config::TrainOptions& /*options*/,
                                             const plan::Workload& /*whole*/,
                                             const plan::Budgets& /*budgets*/,
                                             const plan::Placement& /*fitting*/) override {
    return found_.profile;
  }

 private:
  const Planned& found_;
};

class PlanOnPaper : public testing::TestWithParam<GridCase> {
 protected:
  PlanOnPaper() {
    std::ofstream(data_.path() / "meta.json") << R"({"dtype": "uint16", "vocab_size": 67})";
    write_tokens(data_.path() / "train.bin", 67, 2000);
  }

  [[nodiscard]] TrainRequest request_for(const GridCase& grid, Adjust adjust) {
    TrainRequest request;
    request.model = config_;
    request.options = tiny_options();
    request.options.device = config::DeviceKind::host;
    request.options.context = 8;
    request.options.steps = 1;
    request.options.commit_every = 0;  // which the plan says
    if (grid.grid.stages > 1) request.options.rounds = 1;
    request.options.zero_stage = grid.zero_stage;
    request.options.pipeline.stages = grid.grid.stages;
    request.options.tensor.ranks = grid.grid.tensor;
    adjust(request.options);
    request.data = data_.path();
    request.run = data_.path() / ("run" + std::to_string(runs_++));
    return request;
  }

  static std::vector<Trained> train_all(const TrainRequest& request, std::uint32_t ranks) {
    std::vector<Trained> trained(ranks);
    const std::atomic<int> interrupt{0};
    comm::ThreadGroup(ranks).run([&](comm::Communicator& self) {
      TrainRequest mine = request;
      mine.ranks = ranks == 1 ? nullptr : &self;
      static_cast<void>(train(mine, trained[self.rank().value()], interrupt));
    });
    return trained;
  }

  [[nodiscard]] Planned plan_for(const TrainRequest& request, const plan::GridPlace& place,
                                 const Trained& trained) const {
    config::TrainOptions options = request.options;
    resolve(options, config_);
    const plan::Replicas replicas = replicas_of(options, place.grid.replicas);
    FoundMachine machine(trained.plan);
    RankGroups on_paper(place);
    return plan_rank(config_, options, replicas, StageLayers::chosen, machine, on_paper,
                     [](const std::string&) {});
  }

  const model::ModelConfig config_ = tiny_llama(4);
  ScratchDirectory data_{"planner"};
  int runs_ = 0;
};

TEST_P(PlanOnPaper, HasTheOperationsOfTheOneThatTrains) {
  const plan::Grid& grid = GetParam().grid;
  for (const auto& [name, adjust] : kAdjustments) {
    SCOPED_TRACE(name);
    const TrainRequest request = request_for(GetParam(), adjust);
    const std::vector<Trained> trained = train_all(request, grid.ranks());
    std::vector<Planned> papers;
    for (std::uint32_t rank = 0; rank < trained.size(); ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      const Planned paper = plan_for(request, {.grid = grid, .rank = rank}, trained[rank]);
      EXPECT_TRUE(paper.placement == trained[rank].plan.placement);
      EXPECT_FALSE(trained[rank].operations.empty());
      EXPECT_EQ(plan::to_text(plan::build_training_step(paper.workload, paper.placement,
                                                        {.place = paper.place})),
                trained[rank].operations);
      papers.push_back(paper);
    }
    // The stage that waits least tells the step of all.
    const auto stretch = [](const Planned& paper) { return paper.workload.stage.stretch; };
    const Planned& busiest = *std::ranges::min_element(papers, {}, stretch);
    for (const Trained& rank : trained) {
      EXPECT_EQ(busiest.prediction.step_seconds, rank.plan.prediction.step_seconds);
      EXPECT_GT(rank.plan.commit_every, 0U);
      EXPECT_EQ(rank.plan.commit_every, trained.front().plan.commit_every);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, PlanOnPaper, testing::ValuesIn(kGrids),
                         [](const auto& grid) { return std::string(grid.param.name); });

TEST(PlanOfReplicas, RefusesWhatTheyExcludeByTheNameOfTheOption) {
  const std::pair<Adjust, const char*> excluded[] = {
      {[](config::TrainOptions& o) { o.operator_tile = 4096; }, "spillway.operator_tile"},
      {[](config::TrainOptions& o) { o.work_order = config::WorkOrder::micro_batch_major; },
       "spillway.work_order micro_batch_major"},
      {[](config::TrainOptions& o) {
         o.zero_stage = 1;
         o.pipeline.schedule = config::PipelineSchedule::pipedream_2bw;
       },
       "use zero_optimization.stage 0"},
  };
  const Planned unasked;
  for (const auto& [adjust, name] : excluded) {
    config::TrainOptions options = tiny_options();
    adjust(options);
    FoundMachine machine(unasked);
    RankGroups on_paper({.grid = {.replicas = 2}, .rank = 0});
    try {
      std::ignore = plan_rank(tiny_llama(4), options, replicas_of(options, 2), StageLayers::chosen,
                              machine, on_paper, [](const std::string&) {});
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_supported);
      EXPECT_THAT(error.what(), testing::HasSubstr(name));
    }
  }
}

}  // namespace
}  // namespace spillway::engine::planner_test
