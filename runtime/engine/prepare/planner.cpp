#include "runtime/engine/prepare/planner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/prepare/commit_every.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/score_gradients.hpp"
#include "runtime/engine/prepare/stage_layers.hpp"
#include "runtime/engine/prepare/step_shape.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/engine/ranks/rank_agreement.hpp"
#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/search/fastest.hpp"
#include "runtime/plan/search/speculation.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {
namespace {

/// Cuts the layers into stages; without a profile, so that they fit. All ranks take the cut of the
/// first.
plan::BalancedLayers cut_stages(const plan::Workload& whole, const config::TrainOptions& options,
                                const plan::Budgets& budgets, const plan::MachineProfile* profile,
                                RankGroups& ranks) {
  plan::BalancedLayers cut = balance_stages(whole, options, budgets, profile);
  for (std::uint32_t& layers : cut.layers) layers = ranks.first(layers);
  return cut;
}

void note_cut(const plan::BalancedLayers& cut, const Note& note) {
  if (cut.seconds == cut.by_flops) return;
  note(fmt::format("the stages have {} layers: simulated, a step takes {:.4g} s{}",
                   fmt::join(cut.layers, " + "), cut.seconds,
                   cut.by_flops > 0 ? fmt::format(", and {:.4g} s with equal FLOPs", cut.by_flops)
                                    : ", and stages with equal FLOPs do not fit"));
}

/// A step can update ahead only what the step before has committed.
bool wants_speculation(const config::TrainOptions& options) {
  return options.update == config::UpdateMode::speculative && options.commit_every <= 1;
}

/// Finds the placement with the fastest step; `fitting` is one that fits. The ranks of a tensor
/// group plan for the first of them, and so have one placement and one order of what they do
/// together.
plan::PlannedStep fastest_step(const Planned& planned, const plan::Placement& fitting) {
  return plan::fastest_placement(planned.workload, planned.budgets,
                                 placement_request(planned.options), planned.profile, fitting);
}

/// Takes the step, with updates ahead where the options ask for them, and the job's time for it.
void take_step(Planned& planned, plan::PlannedStep fastest, RankGroups& ranks) {
  if (wants_speculation(planned.options)) {
    plan::speculate(planned.workload, planned.profile, fastest);
  }
  planned.placement = std::move(fastest.placement);
  planned.prediction = std::move(fastest.prediction);
  plan::Prediction& prediction = planned.prediction;
  const auto of_job = [&](double seconds) {
    return seconds_of_job(ranks, planned.workload.stage.stretch, seconds);
  };
  prediction.step_seconds = of_job(prediction.step_seconds);
  if (planned.profile.paces == plan::Paces{}) return;
  const plan::StepPlan step = plan::build_training_step(planned.workload, planned.placement);
  const auto at = [&](double plan::Pace::*quarter) {
    return plan::simulate(step, plan::at_pace(planned.profile, quarter)).step_seconds;
  };
  prediction.fast_seconds = of_job(at(&plan::Pace::fast));
  prediction.slow_seconds = of_job(at(&plan::Pace::slow));
}

void note_speculation(const Planned& planned, const Note& note) {
  const std::uint32_t blocks = planned.placement.speculative_blocks;
  if (blocks > 0) {
    return note(
        fmt::format("the last {} of {} blocks are updated during backward, as if nothing "
                    "were clipped",
                    blocks, planned.placement.blocks.size()));
  }
  const bool may = plan::may_speculate(planned.workload, planned.placement);
  note(fmt::format("spillway.update speculative has no effect: {}",
                   may && planned.options.commit_every <= 1
                       ? "simulated, no step is shorter with it"
                       : "it is for one rank whose state is all on disk and which commits each "
                         "step of whole layers, layer by layer"));
}

/// Returns the steps between commits. Stages have other state and other places for it, and commit
/// the same steps.
std::uint64_t commit_every_of(const Planned& planned, RankGroups& ranks) {
  if (planned.options.commit_every > 0) return planned.options.commit_every;
  return largest_of(ranks, planned_commit_every(planned.workload, planned.placement,
                                                planned.profile, planned.prediction.step_seconds));
}

/// Gives the step the shape that takes least by the machine's rates, which is that of the first
/// rank for all. It has no stages, whose micro-batches are its rounds. Returns the fastest step.
plan::PlannedStep take_fastest_shape(Planned& planned, const model::ModelConfig& config,
                                     RankGroups& ranks) {
  const plan::Replicas replicas = planned.workload.replicas;
  FoundShape found =
      fastest_shape({config, planned.options, replicas, planned.budgets}, planned.profile);
  planned.shape = {.chosen = ranks.first(found.choice.chosen), .next = found.choice.next};
  take_shape(planned.options, planned.shape->chosen.shape);
  planned.workload = make_workload(config, planned.options, replicas);
  const bool own = planned.shape->chosen.shape == found.choice.chosen.shape;
  if (found.step && own) return *std::move(found.step);
  return fastest_step(planned, place(config, planned.options, planned.workload, planned.budgets));
}

/// Lets attention use what the placement leaves of the device's memory.
void give_scores_the_rest(Planned& planned, const model::ModelConfig& config) {
  const config::TrainOptions& options = planned.options;
  const Bytes scores = spare_score_gradients(config, planned);
  if (scores == model::cuda::kScoreGradients) return;
  planned.score_gradients = scores;
  const ModelRuntime wider = make_model_sizes(
      config, options, {.score_gradients = scores, .tensor_index = planned.place.tensor_index()});
  planned.workload =
      of_stage(make_workload(config, *wider.transformer, options, planned.workload.replicas),
               options, planned.place.stage());
}

/// Refuses what ranks that have micro-batches of their own exclude in this version.
void check_replicas(const config::TrainOptions& options, const plan::Replicas& replicas) {
  if (replicas.count == 1) return;
  check(options.operator_tile == 0, ErrorCode::not_supported,
        fmt::format("spillway.operator_tile with more than one rank is not supported, and {} ranks "
                    "share out a step; remove it",
                    replicas.count));
  check(options.work_order == plan::WorkOrder::layer_major, ErrorCode::not_supported,
        "spillway.work_order micro_batch_major with more than one rank is not supported; remove "
        "it");
  check(options.update != config::UpdateMode::delayed, ErrorCode::not_supported,
        "spillway.update delayed with more than one rank is not supported in this version; write "
        "update deferred");
  check(!has_stale_weights(options.pipeline.schedule) || replicas.sharding == plan::Sharding::none,
        ErrorCode::not_supported,
        "this version shares out no state among the replicas of a stage with schedule "
        "pipedream_2bw; use zero_optimization.stage 0 or the schedule 1f1b");
}

}  // namespace

Planned plan_rank(const model::ModelConfig& config, config::TrainOptions resolved,
                  const plan::Replicas& replicas, StageLayers stage_layers,
                  PlanningMachine& machine, RankGroups& ranks, const Note& note) {
  check_replicas(resolved, replicas);
  Planned planned;
  planned.place = ranks.place();
  planned.options = std::move(resolved);
  config::TrainOptions& options = planned.options;
  const std::uint32_t stage = planned.place.stage();
  const bool balances = balances_stages(options) && stage_layers == StageLayers::chosen;
  const bool searches = leaves_shape_open(options);
  const auto budgets_for = [&](const config::TrainOptions& tried, const plan::Workload& step) {
    return machine.budgets(tried, step);
  };
  if (searches) planned.budgets = take_first_rounds(options, config, replicas, budgets_for);
  const plan::Workload whole = make_workload(config, options, replicas);
  planned.workload = of_stage(whole, options, stage);
  if (!searches) planned.budgets = machine.budgets(options, planned.workload);
  const auto take_cut = [&](const plan::BalancedLayers& layers, config::TrainOptions& named) {
    named.pipeline.parts = layers.layers;
    planned.workload = of_stage(whole, named, stage);
  };
  if (balances) {
    config::TrainOptions provisional = options;
    take_cut(cut_stages(whole, options, planned.budgets, nullptr, ranks), provisional);
  }
  plan::Placement fitting = place(config, options, planned.workload, planned.budgets, budgets_for);
  planned.profile =
      slowest(ranks, with_links(ranks, machine.profile(options, whole, planned.budgets, fitting)));
  if (balances) {
    const plan::BalancedLayers layers =
        cut_stages(whole, options, planned.budgets, &planned.profile, ranks);
    take_cut(layers, options);  // a run keeps its cut
    fitting = place(config, options, planned.workload, planned.budgets, budgets_for);
    note_cut(layers, note);
  }
  plan::PlannedStep step =
      searches ? take_fastest_shape(planned, config, ranks) : fastest_step(planned, fitting);
  options.automatic = {};
  take_step(planned, std::move(step), ranks);
  if (planned.shape) {
    planned.shape->chosen.step_seconds = planned.prediction.step_seconds;
    note(to_text(*planned.shape));
  }
  planned.commit_every = commit_every_of(planned, ranks);
  if (options.update == config::UpdateMode::speculative) note_speculation(planned, note);
  give_scores_the_rest(planned, config);
  return planned;
}

}  // namespace spillway::engine
