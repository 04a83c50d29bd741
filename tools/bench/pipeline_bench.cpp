#include "tools/bench/pipeline_bench.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <variant>

#include "comm/threads/thread_group.hpp"
#include "offload/host/host_backend.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/engine/training/update_decision.hpp"
#include "runtime/plan/pipeline/stages.hpp"
#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/step/dependency_tracker.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::bench {
namespace {

using plan::Lane;
using plan::Op;
using plan::OpKind;
using plan::PipelineSchedule;

constexpr double kFlops = 1e12;  ///< a second; large beside the FLOP that a pass has at least
constexpr Bytes kBoundary{4096};

/// Returns a model of as many equal layers as there are parts. Nothing else computes.
plan::Workload even_model(const PipelineCase& what) {
  const std::uint32_t parts = what.pipeline.stages * what.pipeline.chunks;
  plan::Workload model;
  for (std::uint32_t layer = 0; layer < parts + 2; ++layer) {
    plan::BlockShape block;
    block.name = "block";
    block.parameters = block.padded_parameters = ElementCount{kLeafParameters};
    if (layer > 0 && layer <= parts) {
      block.forward_flops = what.forward_seconds * kFlops / what.pipeline.chunks;
      block.backward_flops = what.backward_seconds * kFlops / what.pipeline.chunks;
      block.saved_bytes = kBoundary;
    }
    model.blocks.push_back(block);
  }
  model.boundary_bytes = kBoundary;
  model.workspace_bytes = model.token_bytes = kBoundary;
  model.tokens = 1;
  model.rounds = what.pipeline.rounds;
  return model;
}

/// A stage's lists.
struct Lists {
  plan::Workload workload;
  plan::StepPlan fill;                ///< of no ops where the pipeline does not stay full
  std::vector<plan::StepPlan> steps;  ///< they take turns
};

Lists lists_of(const PipelineCase& what, std::uint32_t stage) {
  Lists lists;
  lists.workload = plan::workload_of_stage(even_model(what), what.pipeline, stage);
  const plan::PlacementRequest request{.commits = false};
  const auto choice = plan::choose_placement(lists.workload, {1_GiB, 1_GiB, 1_GiB}, request);
  const auto& placement = std::get<plan::Placement>(choice);
  if (lists.workload.stale.stays_full()) {
    lists.fill = plan::build_fill(lists.workload, placement);
  }
  for (std::uint32_t phase = 0; phase < lists.workload.stale.phases; ++phase) {
    lists.steps.push_back(plan::build_training_step(lists.workload, placement, {.phase = phase}));
  }
  return lists;
}

/// Passes take their time, messages pass, and nothing else takes any.
class Throttled final : public engine::OpPerformer {
 public:
  Throttled(const plan::Stage& stage, comm::Communicator& line)
      : stage_(stage), line_(line), message_(kBoundary.value()) {}

  void begin(const plan::StepPlan&) override {}
  [[nodiscard]] bool skips(const Op&) const override { return false; }
  void enqueue(const Op& op, offload::Stream& stream) override {
    if (plan::is_model_op(op)) stream.submit([this, &op] { run(op); });
  }
  [[nodiscard]] Ticket start(const Op& op) override {
    const std::span bytes(message_);
    if (op.kind == OpKind::send) return line_.send(bytes, Rank{op.peer});
    if (op.kind == OpKind::receive) return line_.receive(bytes, Rank{op.peer});
    return {};
  }
  [[nodiscard]] std::uint32_t most_kept() const { return most_kept_; }

 private:
  void run(const Op& op) {
    const bool begins = std::ranges::any_of(stage_.chunks, [&](const plan::BlockRange& chunk) {
      return op.block == std::max(chunk.first, 1U);
    });
    if (begins && op.kind == OpKind::forward) most_kept_ = std::max(most_kept_, ++kept_);
    std::this_thread::sleep_for(std::chrono::duration<double>(op.flops / kFlops));
    if (begins && op.kind == OpKind::backward) --kept_;
  }

  const plan::Stage& stage_;
  comm::Communicator& line_;
  std::vector<std::byte> message_;
  std::uint32_t kept_ = 0;
  std::uint32_t most_kept_ = 0;
};

double busy_seconds(const engine::Executor& executor) {
  double seconds = 0;
  for (plan::OpIndex i = 0; i < executor.plan().ops.size(); ++i) {
    if (!plan::is_model_op(executor.plan().ops[i])) continue;
    seconds += executor.timings()[i].end - executor.timings()[i].start;
  }
  return seconds;
}

/// What a stage tells of the steps between two meetings.
struct StepTimes {
  double end = 0;  ///< from the start of all
  double busy = 0;
};

/// Returns the number of steps from one meeting of the stages to the next, as in a run.
std::uint32_t steps_of_meeting(const PipelineCase& what, const plan::Workload& stage) {
  config::TrainOptions options;
  options.compute = DType::fp32;
  options.gradient_clipping = what.clips ? 1 : 0;
  return engine::steps_of_sums(options, stage);
}

std::vector<StepTimes> run_stage(const PipelineCase& what, comm::Communicator& line,
                                 std::uint32_t& activations) {
  const Lists lists = lists_of(what, line.rank().value());
  WakeSignal wake;
  line.wake_with(&wake);
  const auto backend = offload::make_host_backend(
      {.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .wake = &wake});
  engine::Streams streams(*backend);
  engine::Executor fill(lists.fill, streams, wake);
  std::vector<std::unique_ptr<engine::Executor>> steps;
  steps.reserve(lists.steps.size());
  for (const plan::StepPlan& step : lists.steps) {
    steps.push_back(std::make_unique<engine::Executor>(step, streams, wake));
  }
  Throttled performer(lists.workload.stage, line);
  fill.run(performer);
  std::vector<StepTimes> times;
  times.reserve(1 + what.meetings);
  line.barrier().wait();
  const auto begin = std::chrono::steady_clock::now();
  const std::uint32_t most = steps_of_meeting(what, lists.workload);
  std::uint32_t next = 0;
  for (std::uint32_t meeting = 0; meeting < 1 + what.meetings; ++meeting) {
    StepTimes& since = times.emplace_back();
    const std::uint32_t count = meeting == 0 ? 1 : most;
    for (std::uint32_t i = 0; i < count; ++i) {
      engine::Executor& step = *steps[next++ % steps.size()];
      step.run(performer);
      since.busy += busy_seconds(step);
    }
    line.barrier().wait();
    since.end = seconds_since(begin);
  }
  activations = performer.most_kept();
  line.wake_with(nullptr);
  return times;
}

/// Narayanan et al. 2021, sections 2.2.1 and 2.2.2; PipeDream (2019), section 3.2, and
/// PipeDream-2BW (2021), section 3.1, which have none. Where stages clip, and so meet after a step
/// that leaves the pipeline full, they wait for passes backward alone.
double published_bubble(const PipelineCase& what) {
  const plan::Pipeline& p = what.pipeline;
  const double behind = p.stages - 1;
  if (p.schedule == PipelineSchedule::naive) return behind;
  if (plan::has_stale_weights(p.schedule)) {
    const double both = what.forward_seconds + what.backward_seconds;
    return what.clips ? behind / p.rounds * what.backward_seconds / both : 0;
  }
  return behind / (static_cast<double>(p.chunks) * p.rounds);
}

std::uint32_t published_activations(const plan::Pipeline& p) {
  switch (p.schedule) {
    case PipelineSchedule::naive: return 1;
    case PipelineSchedule::f_then_b: return p.rounds;
    case PipelineSchedule::interleaved:
      return std::min(p.rounds * p.chunks, 2 * (p.stages - 1) + (p.chunks - 1) * p.stages + 1);
    case PipelineSchedule::pipedream:
    case PipelineSchedule::pipedream_2bw: return p.stages;
    case PipelineSchedule::one_f_one_b: break;
  }
  return std::min(p.rounds, p.stages);
}

/// Stages that have met begin together.
double simulated_bubble(const PipelineCase& what) {
  std::vector<plan::StepPlan> stages;
  for (std::uint32_t stage = 0; stage < what.pipeline.stages; ++stage) {
    const Lists lists = lists_of(what, stage);
    std::vector<plan::StepPlan> all;
    const std::uint32_t steps = steps_of_meeting(what, lists.workload);
    for (std::uint32_t step = 0; step < steps; ++step) {
      all.push_back(lists.steps[step % lists.steps.size()]);
    }
    stages.push_back(plan::in_a_row(all));
  }
  constexpr double kInstant = 1e30;
  plan::MachineProfile machine;
  machine.gpu_flops = kFlops;
  machine.h2d = machine.d2h = machine.net = machine.update = kInstant;
  StepTimes times;
  for (const plan::Prediction& stage : plan::simulate_stages(stages, machine)) {
    times.busy += stage[Lane::gpu].busy;
    times.end = stage.step_seconds;
  }
  return times.end * what.pipeline.stages / times.busy - 1;
}

}  // namespace

double PipelineMeasurement::bubble() const {
  std::vector<double> sorted = bubbles;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

PipelineMeasurement measure_pipeline(const PipelineCase& what) {
  const std::uint32_t stages = what.pipeline.stages;
  PipelineMeasurement measured{.published_bubble = published_bubble(what),
                               .simulated_bubble = simulated_bubble(what),
                               .bubbles = {},
                               .published_activations = published_activations(what.pipeline)};
  std::vector<std::vector<StepTimes>> times(stages);
  std::vector<std::uint32_t> activations(stages);
  comm::ThreadGroup(stages).run([&](comm::Communicator& line) {
    const std::uint32_t stage = line.rank().value();
    times[stage] = run_stage(what, line, activations[stage]);
  });
  for (std::uint32_t meeting = 1; meeting < 1 + what.meetings; ++meeting) {
    double busy = 0;
    for (const std::vector<StepTimes>& stage : times) busy += stage[meeting].busy;
    const double seconds = times[0][meeting].end - times[0][meeting - 1].end;
    measured.bubbles.push_back(seconds * stages / busy - 1);
  }
  measured.activations = activations[0];
  return measured;
}

}  // namespace spillway::bench
