// The step plans of a pipeline's stages: each by the rules of a plan, and all of them together
// against the plan of one rank.
#include "runtime/plan/pipeline/stages.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/stage_plans.hpp"

namespace spillway::plan::stages_test {
namespace {

std::vector<Pipeline> pipelines() {
  std::vector<Pipeline> all;
  for (const std::uint32_t stages : {1U, 2U, 3U, 4U}) {
    for (const std::uint32_t rounds : {1U, 2U, 5U}) {
      for (const auto schedule :
           {PipelineSchedule::naive, PipelineSchedule::f_then_b, PipelineSchedule::one_f_one_b}) {
        all.push_back({schedule, stages, rounds, 1});
      }
    }
    all.push_back({PipelineSchedule::interleaved, stages, 2 * stages, 2});
  }
  return all;
}

/// What an op is, wherever it runs.
using Identity = std::tuple<OpKind, std::uint32_t, std::uint32_t, std::uint32_t>;

std::map<Identity, int> passes_in(const StepPlan& plan) {
  std::map<Identity, int> passes;
  for (const Op& op : plan.ops) {
    if (is_model_op(op) || op.kind == OpKind::round_gradient || op.kind == OpKind::add_gradient) {
      ++passes[{op.kind, op.block, op.round, op.micro_batch}];
    }
  }
  return passes;
}

/// Checks the plans of all stages.
void expect_correct_stages(const Workload& model, const BlockCut& cut) {
  for (const Pipeline& pipeline : pipelines()) {
    for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
      SCOPED_TRACE(fmt::format("{} {} stages, {} rounds, {} chunks, stage {}",
                               name_of(pipeline.schedule), pipeline.stages, pipeline.rounds,
                               pipeline.chunks, stage));
      const Workload w = workload_of_stage(model, pipeline, stage);
      Placement placement = uniform_placement(w, cut);
      placement.saved_slots = 2;
      expect_correct({w, placement});
    }
  }
}

TEST(Stages, KeepEveryRuleOfAPlan) {
  const BlockCut cuts[] = {
      {}, kResident, {.state = Tier::nvme}, {.parameters = Tier::device, .saved = Tier::host}};
  for (const BlockCut& cut : cuts) {
    expect_correct_stages(model_of(8), cut);
    expect_correct_stages(model_of(8, Head::tied), cut);
  }
}

TEST(Stages, KeepEveryRuleOfAPlanWithReplicas) {
  for (const Sharding sharding : {Sharding::none, Sharding::state, Sharding::parameters}) {
    for (const SumOrder sums : {SumOrder::fast, SumOrder::fixed}) {
      Workload model = model_of(8, Head::tied);
      model.replicas = {.count = 2, .sharding = sharding, .sums = sums};
      pad_for_ranks(model);
      expect_correct_stages(model, model.gathers() ? BlockCut{} : kResident);
    }
  }
}

TEST(Stages, RunTogetherWhatOneRankRuns) {
  for (const Pipeline& pipeline : pipelines()) {
    Workload model = model_of(8, Head::tied);
    model.rounds = pipeline.rounds;
    std::map<Identity, int> together;
    for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
      const Workload w = workload_of_stage(model, pipeline, stage);
      together.merge(passes_in(build_training_step(w, uniform_placement(w, kResident))));
    }
    EXPECT_EQ(together, passes_in(build_training_step(model, uniform_placement(model, kResident))));
  }
}

/// What two stages pass between them, in order: who sends, and what.
using Message = std::tuple<std::uint32_t, Value, Bytes>;

TEST(Stages, SendWhatTheOthersReceiveInTheSameOrder) {
  for (const Pipeline& pipeline : pipelines()) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Message>> seen;
    for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
      const Workload w = workload_of_stage(model_of(8, Head::tied), pipeline, stage);
      const StepPlan plan = build_training_step(w, uniform_placement(w, kResident));
      for (const Op& op : plan.ops) {
        if (op.kind != OpKind::send && op.kind != OpKind::receive) continue;
        const ValueKind what = plan.accesses_of(op)[0].value.kind;
        const std::uint64_t tied = w.tied_elements.value();
        EXPECT_EQ(op.bytes, what == ValueKind::parameters          ? Bytes{2 * tied}
                            : what == ValueKind::tied_gradient_sum ? Bytes{4 * tied}
                                                                   : w.boundary_bytes);
        const std::uint32_t sender = op.kind == OpKind::send ? stage : op.peer;
        seen[{stage, op.peer}].emplace_back(sender, plan.accesses_of(op)[0].value, op.bytes);
      }
    }
    for (const auto& [pair, messages] : seen) {
      EXPECT_EQ(messages, (seen[{pair.second, pair.first}]));
    }
    EXPECT_EQ(seen.empty(), pipeline.stages == 1);
  }
}

// Narayanan et al. 2021, section 2.2: F-then-B keeps the activations of all micro-batches, 1F1B of
// as many as there are stages behind, and this one.
TEST(Stages, KeepActivationsOfTheRoundsInFlight) {
  constexpr std::uint32_t kStages = 4;
  constexpr std::uint32_t kRounds = 7;
  for (std::uint32_t stage = 0; stage < kStages; ++stage) {
    const auto kept = [&](PipelineSchedule schedule) {
      const Workload w = workload_of_stage(model_of(8), {schedule, kStages, kRounds, 1}, stage);
      const Pools pools = make_pools(w, uniform_placement(w, kResident));
      std::uint64_t one = 0;
      for (const BlockShape& block : w.blocks) one += block.saved_bytes.value();
      if (stage + 1 == kStages) one -= w.blocks.back().saved_bytes.value();
      const Bytes all = pools[static_cast<std::size_t>(PoolKind::saved_activations)].bytes();
      return static_cast<double>(all.value()) / static_cast<double>(one * w.micro_batches);
    };
    EXPECT_EQ(kept(PipelineSchedule::naive), 1);
    EXPECT_EQ(kept(PipelineSchedule::f_then_b), kRounds);
    EXPECT_EQ(kept(PipelineSchedule::one_f_one_b), kStages - stage);
  }
}

TEST(Stages, HoldTheModelOnce) {
  const Workload model = model_of(8);
  const Pipeline pipeline{PipelineSchedule::interleaved, 3, 6, 2};
  std::vector<int> holders(model.blocks.size());
  for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
    const Workload w = workload_of_stage(model, pipeline, stage);
    for (std::size_t b = 0; b < w.blocks.size(); ++b) {
      if (w.blocks[b].parameters == ElementCount{}) continue;
      ++holders[b];
      EXPECT_EQ(w.blocks[b].padded_parameters, model.blocks[b].padded_parameters);
    }
  }
  EXPECT_EQ(holders, std::vector<int>(model.blocks.size(), 1));
}

/// Tries every cut.
double shortest_longest(const std::vector<double>& flops, std::size_t first, std::uint32_t parts) {
  double part = 0;
  double best = 1e300;
  if (parts == 1) {
    for (std::size_t l = first; l < flops.size(); ++l) part += flops[l];
    return part;
  }
  for (std::size_t end = first + 1; end + parts - 1 <= flops.size(); ++end) {
    part += flops[end - 1];
    best = std::min(best, std::max(part, shortest_longest(flops, end, parts - 1)));
  }
  return best;
}

TEST(Stages, AreCutSoThatTheLongestIsAsShortAsCanBe) {
  Workload model = model_of(9);
  std::vector<double> flops;
  for (std::size_t l = 0; l < model.blocks.size(); ++l) {
    model.blocks[l].forward_flops = static_cast<double>(l * 7 % 5);
    model.blocks[l].backward_flops = static_cast<double>(l * 3 % 11);
    flops.push_back(model.blocks[l].forward_flops + model.blocks[l].backward_flops);
  }
  for (const std::uint32_t stages : {1U, 2U, 3U, 5U, 11U}) {
    double longest = 0;
    std::uint32_t end = 0;
    for (const BlockRange& part : cut_layers(model, {.stages = stages})) {
      EXPECT_EQ(part.first, end);
      EXPECT_GT(part.end, part.first);
      end = part.end;
      double all = 0;
      for (std::uint32_t l = part.first; l < part.end; ++l) all += flops[l];
      longest = std::max(longest, all);
    }
    EXPECT_EQ(end, flops.size());
    EXPECT_DOUBLE_EQ(longest, shortest_longest(flops, 0, stages));
  }
}

TEST(Stages, RefuseWhatCannotBeCut) {
  Workload model = model_of(2);
  EXPECT_THROW(std::ignore = cut_layers(model, {.stages = 5}), Error);
  model.operator_tiles = true;
  for (std::uint32_t b = 0; b < model.blocks.size(); ++b) model.blocks[b].layer = b;
  try {
    std::ignore = workload_of_stage(model, {.stages = 2, .rounds = 2}, 0);
    FAIL() << "tiles were cut";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
  }
}

}  // namespace
}  // namespace spillway::plan::stages_test
