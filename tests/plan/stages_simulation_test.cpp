// The step plans of all stages of a pipeline, simulated together: their bubble and the activations
// that they keep against the published formulas.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step/dependency_tracker.hpp"
#include "tests/plan/pipeline_helpers.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/stage_plans.hpp"

namespace spillway::plan::stages_simulation_test {
namespace {

constexpr double kForward = 1;
constexpr double kBackward = 2;
constexpr double kFlops = 1e12;  ///< of the machine, a second

/// Returns a machine on which all but FWD-BWD takes no time.
MachineProfile computing_machine() {
  constexpr double kInstant = 1e30;
  MachineProfile profile;
  profile.gpu_flops = kFlops;
  profile.h2d = profile.d2h = profile.net = profile.update = kInstant;
  return profile;
}

/// Returns a model that `parts` parts have equal work of: a pass through each takes `kForward` or
/// `kBackward`.
Workload even_model(std::uint32_t parts) {
  Workload model = model_of(2 * parts);
  for (BlockShape& block : model.blocks) block.forward_flops = block.backward_flops = 0;
  for (std::uint32_t layer = 1; layer < model.head_layer(); ++layer) {
    model.blocks[layer].forward_flops = kFlops * kForward / 2 / model.micro_batches;
    model.blocks[layer].backward_flops = kFlops * kBackward / 2 / model.micro_batches;
  }
  return model;
}

using Build = StepPlan (*)(const Workload&, const Placement&, const WhichList&);

/// Returns the list of each stage, in the step of that number.
std::vector<StepPlan> lists_of(const Pipeline& pipeline, Build build, std::uint32_t step = 0) {
  const Workload model = even_model(pipeline.stages * pipeline.chunks);
  std::vector<StepPlan> lists;
  for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
    const Workload w = workload_of_stage(model, pipeline, stage);
    lists.push_back(build(w, uniform_placement(w, kResident), {.phase = step % w.stale.phases}));
  }
  return lists;
}

std::vector<Pipeline> pipelines() {
  std::vector<Pipeline> all;
  for (const std::uint32_t stages : {2U, 3U, 4U, 8U}) {
    for (const std::uint32_t rounds : {1U, 2U, 5U, 8U, 13U}) {
      for (const auto schedule :
           {PipelineSchedule::naive, PipelineSchedule::f_then_b, PipelineSchedule::one_f_one_b}) {
        all.push_back({schedule, stages, rounds, 1});
      }
      if (rounds > 5) continue;
      all.push_back({PipelineSchedule::interleaved, stages, rounds * stages, 2});
      all.push_back({PipelineSchedule::interleaved, stages, rounds * stages, 3});
    }
  }
  return all;
}

std::string name(const Pipeline& p) {
  return fmt::format("{} of {} stages, {} rounds, {} chunks", name_of(p.schedule), p.stages,
                     p.rounds, p.chunks);
}

double bubble_of(const std::vector<Prediction>& stages) {
  double busy = 0;
  for (const Prediction& stage : stages) busy += stage[Lane::gpu].busy;
  return stages[0].step_seconds * static_cast<double>(stages.size()) / busy - 1;
}

// Narayanan et al. 2021, sections 2.2.1 and 2.2.2: (p - 1)/m, and (p - 1)/(v m) where it is
// interleaved. Naive: one stage of p runs at a time.
TEST(StagesTogether, HaveTheBubbleOfThePublishedFormulas) {
  for (const Pipeline& p : pipelines()) {
    const double published = p.schedule == PipelineSchedule::naive
                                 ? p.stages - 1
                                 : (p.stages - 1.0) / (static_cast<double>(p.chunks) * p.rounds);
    const auto stages = simulate_stages(lists_of(p, build_training_step), computing_machine());
    EXPECT_NEAR(bubble_of(stages), published, 1e-9) << name(p);
    const Workload last = workload_of_stage(even_model(p.stages * p.chunks), p, p.stages - 1);
    EXPECT_NEAR(last.stage.stretch, 1 + published, 1e-9) << name(p);
  }
}

/// Returns the most rounds and chunks at once between the start of a forward and the end of its
/// backward. A layer that is the first of its chunk speaks for it.
std::uint32_t most_kept(const Workload& stage, const StepPlan& plan, const Prediction& timed) {
  std::vector<std::pair<double, int>> events;
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    if (op.micro_batch > 0) continue;
    for (const BlockRange& chunk : stage.stage.chunks) {
      const std::uint32_t layer = std::max(chunk.first, 1U);
      if (op.block != layer) continue;
      // At one time, an end counts first.
      if (op.kind == OpKind::forward) events.emplace_back(timed.ops[i].start, 1);
      if (op.kind == OpKind::backward) events.emplace_back(timed.ops[i].end, -1);
    }
  }
  std::ranges::sort(events);
  int kept = 0;
  int most = 0;
  for (const auto& [time, change] : events) most = std::max(most, kept += change);
  return static_cast<std::uint32_t>(most);
}

// The same sections: all rounds (F-then-B), those of the stages behind and this one (1F1B), and
// with v chunks 2 (p - 1) + (v - 1) p + 1 chunks of rounds on the first stage.
TEST(StagesTogether, KeepTheActivationsOfThePublishedFormulas) {
  for (const Pipeline& p : pipelines()) {
    const std::vector<StepPlan> lists = lists_of(p, build_training_step);
    const auto timed = simulate_stages(lists, computing_machine());
    const Workload model = even_model(p.stages * p.chunks);
    for (std::uint32_t s = 0; s < p.stages; ++s) {
      std::uint32_t published = 1;
      if (p.schedule == PipelineSchedule::f_then_b) published = p.rounds;
      if (p.schedule == PipelineSchedule::one_f_one_b) published = std::min(p.rounds, p.stages - s);
      if (p.schedule == PipelineSchedule::interleaved) {
        published =
            std::min(p.rounds * p.chunks, 2 * (p.stages - 1 - s) + (p.chunks - 1) * p.stages + 1);
      }
      EXPECT_EQ(most_kept(workload_of_stage(model, p, s), lists[s], timed[s]), published)
          << name(p) << ", stage " << s;
    }
  }
}

/// Returns the seconds of a pipeline that is filled and runs so many steps.
double seconds_of_steps(const Pipeline& p, std::uint32_t steps) {
  std::vector<std::vector<StepPlan>> lists(p.stages);
  const auto add = [&](std::vector<StepPlan> of_stages) {
    for (std::uint32_t s = 0; s < p.stages; ++s) lists[s].push_back(std::move(of_stages[s]));
  };
  add(lists_of(p, build_fill));
  for (std::uint32_t step = 0; step < steps; ++step) add(lists_of(p, build_training_step, step));
  std::vector<StepPlan> stages;
  for (const std::vector<StepPlan>& of_stage : lists) stages.push_back(in_a_row(of_stage));
  return simulate_stages(stages, computing_machine())[0].step_seconds;
}

std::vector<Pipeline> full_pipelines() {
  std::vector<Pipeline> all;
  for (const std::uint32_t stages : {2U, 3U, 4U, 8U}) {
    for (const std::uint32_t more : {0U, 1U, 5U}) {
      all.push_back({PipelineSchedule::pipedream_2bw, stages, stages + more, 1});
    }
    all.push_back({PipelineSchedule::pipedream, stages, 1, 1});
  }
  return all;
}

// PipeDream (2019, section 3.2) and PipeDream-2BW (2021, section 3.1): the pipeline is never
// flushed, so that a step takes no longer than its passes.
TEST(StagesTogether, HaveNoBubbleInAPipelineThatStaysFull) {
  for (const Pipeline& p : full_pipelines()) {
    const std::uint32_t full = p.rounds == 1 ? 2 * p.stages : 4;
    EXPECT_NEAR(seconds_of_steps(p, full + 1) - seconds_of_steps(p, full),
                p.rounds * (kForward + kBackward), 1e-9)
        << name(p);
  }
}

// Ranks meet after each list for losses and norms. Of the bubble, the last passes backward of the
// other stages are left then.
TEST(StagesTogether, WaitForPassesBackwardWhereTheyMeetBetweenFullSteps) {
  for (const Pipeline& p : full_pipelines()) {
    const auto met = simulate_stages(lists_of(p, build_training_step), computing_machine());
    const double left = (p.stages - 1) * kBackward / (p.rounds * (kForward + kBackward));
    EXPECT_NEAR(bubble_of(met), left, 1e-9) << name(p);
    const Workload first = workload_of_stage(even_model(p.stages), p, 0);
    EXPECT_NEAR(first.stage.stretch, 1 + left, 1e-9) << name(p);
  }
}

TEST(StagesTogether, NoticeMessagesThatWaitForEachOther) {
  StepPlan first, second;
  for (StepPlan* plan : {&first, &second}) {
    plan->ops.resize(2);
    for (Op& op : plan->ops) op.lane = Lane::net;
    plan->ops[0].kind = OpKind::send;
    plan->ops[1].kind = OpKind::receive;
  }
  for (Op& op : first.ops) op.peer = 1;
  EXPECT_THROW((void)simulate_stages(std::vector{first, second}, computing_machine()), Error);
  std::swap(second.ops[0], second.ops[1]);
  EXPECT_NO_THROW((void)simulate_stages(std::vector{first, second}, computing_machine()));
}

}  // namespace
}  // namespace spillway::plan::stages_simulation_test
