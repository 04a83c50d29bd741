#include "runtime/engine/training/trainer.hpp"

#include <chrono>
#include <cmath>
#include <utility>

#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"
#include "runtime/config/schedule.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {

namespace {

/// Steps in a row, neither clipped nor skipped, behind which one updates ahead. Clipped steps come
/// in runs: in one, nothing is updated twice but by its first step.
constexpr std::uint32_t kCalmSteps = 2;

/// Returns the state of step 0.
TrainingState first_state(const config::TrainOptions& options) {
  return {.loss_scale =
              config::initial_loss_scale(options.loss_scale, options.compute == DType::fp16)};
}

}  // namespace

Trainer::Trainer(EngineSetup setup, ModelRuntime model)
    : model_(std::move(model)),
      engine_(std::move(setup), model_),
      cycle_(engine_, first_state(engine_.options())),
      steps_of_sums_(steps_of_sums(engine_.options(), workload())),
      rank_sums_(engine_, steps_of_sums_),
      evaluation_executor_(engine_.prepare(plan::build_evaluation(
          workload(), engine_.placement(), {.place = engine_.ranks().place()}))) {
  results_.reserve(steps_of_sums_);
}

/// The ranks take their micro-batches of a round one after the other, so that the order of the data
/// does not depend on their number. Rounds of the next step may begin in this one.
void Trainer::fetch(const data::TokenFile& tokens, const data::Sampler& sampler) {
  const plan::GridPlace& place = engine_.ranks().place();
  const std::uint32_t replicas = place.grid.replicas;
  const std::uint64_t windows =
      std::uint64_t{engine_.options().micro_batch} * workload().micro_batches;
  const std::uint32_t rounds = workload().rounds + workload().stale.begun;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    std::uint64_t cursor =
        cycle_.state().cursor + (std::uint64_t{round} * replicas + place.replica()) * windows;
    for (std::uint32_t m = 0; m < workload().micro_batches; ++m) {
      const data::MicroBatch batch = engine_.batch(index_in_step(workload(), round, m));
      for (std::size_t row = 0; row < batch.rows(); ++row) {
        data::read_window(tokens, sampler.first_token(cursor++), batch, row);
      }
    }
  }
}

/// Decides the update of the step whose list has run, and what becomes of updates ahead.
void Trainer::decide(StepResult& result) {
  TrainingState state = cycle_.state();
  state.cursor += config::windows_of_step(engine_.options()) * workload().replicas.count;
  result.step = ++state.step;
  if (steps_of_sums_ > 1) {
    decide_early(engine_.options(), state, result, rank_sums_.squares(results_.size() - 1),
                 cycle_.next_update());
  } else {
    meet();
    decide_update(engine_.options(), state, result, cycle_.next_update());
  }
  const bool was_ahead = cycle_.is_ahead();
  const bool as_expected = cycle_.decide(state);
  if (engine_.placement().speculative_blocks == 0) return;
  calm_steps_ = as_expected ? calm_steps_ + 1 : 0;
  result.ahead = UpdatesAhead::paused;
  if (was_ahead) result.ahead = as_expected ? UpdatesAhead::kept : UpdatesAhead::undone;
}

std::span<const StepResult> Trainer::step(const data::TokenFile& tokens,
                                          const data::Sampler& sampler, Follows follows) {
  const auto begin = std::chrono::steady_clock::now();
  if (results_complete_) results_.clear();
  results_complete_ = false;
  fetch(tokens, sampler);
  StepResult& result = results_.emplace_back();
  result.tokens = plan::tokens_of_step(workload());
  result.scale = cycle_.state().loss_scale.scale;
  const bool commits = cycle_.commits_next();
  const bool speculates = engine_.placement().speculative_blocks > 0;
  if (speculates) {
    expect_update(engine_.options(), cycle_.state(), result.scale, cycle_.expected_update());
  }
  const bool calm = speculates && calm_steps_ >= kCalmSteps && follows == Follows::step;
  cycle_.run_step(static_cast<float>(result.scale / static_cast<double>(result.tokens)),
                  calm ? Speculate::yes : Speculate::no);

  rank_sums_.add_up_stage(results_.size() - 1);
  decide(result);
  if (commits || cycle_.commits_next() || results_.size() == steps_of_sums_) {
    static_cast<void>(gather_results());
  }
  result.seconds = seconds_since(begin);
  return results_complete_ ? std::span<const StepResult>(results_) : std::span<const StepResult>{};
}

/// Brings losses and norms of all results together.
void Trainer::meet() {
  results_complete_ = true;
  rank_sums_.add_up_stages(results_.size());
  for (std::size_t i = 0; i < results_.size(); ++i) {
    StepResult& result = results_[i];
    result.loss = rank_sums_.loss(i) / static_cast<double>(result.tokens);
    result.grad_norm = std::sqrt(rank_sums_.squares(i)) / result.scale;
  }
}

std::span<const StepResult> Trainer::gather_results() {
  if (results_complete_) return {};
  meet();
  TrainingState state = cycle_.state();
  for (StepResult& result : results_) judge_late(engine_.options(), state, result);
  cycle_.amend(state);
  return results_;
}

Evaluation Trainer::evaluate(const data::TokenFile& tokens) {
  cycle_.flush(Commit::no);
  Evaluation evaluation;
  cycle_.run_over_rounds_in_flight(
      [&] { evaluation = engine::evaluate(engine_, *evaluation_executor_, tokens); });
  return evaluation;
}

}  // namespace spillway::engine
