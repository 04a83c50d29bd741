#include "runtime/engine/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/config/schedule.hpp"

namespace spillway::engine {

Trainer::Trainer(const EngineSetup& setup, ModelRuntime runtime)
    : OwnedModel{std::move(runtime)},
      StepCycle(setup, owned),
      stage_sums_(setup.line, setup.workload.blocks.size() + 1),
      squares_(setup.workload.blocks.size() + 1),
      evaluation_executor_(engine().prepare(plan::build_evaluation(workload(), placement()))) {
  if (setup.ranks != nullptr) rank_sums_.emplace(engine());
  if (setup.start == Start::resumed) return;
  state_.loss_scale =
      config::initial_loss_scale(options().loss_scale, options().compute == DType::fp16);
}

/// The ranks take their micro-batches of a round one after the other, so that the order of the data
/// does not depend on their number.
void Trainer::fetch(const data::TokenFile& tokens, const data::Sampler& sampler) {
  const plan::Ranks& ranks = workload().ranks;
  const std::uint64_t windows = std::uint64_t{options().micro_batch} * workload().micro_batches;
  for (std::uint32_t round = 0; round < workload().rounds; ++round) {
    std::uint64_t cursor =
        state_.cursor + (std::uint64_t{round} * ranks.count + ranks.rank) * windows;
    for (std::uint32_t m = 0; m < workload().micro_batches; ++m) {
      const data::MicroBatch batch = engine().batch(round * workload().micro_batches + m);
      for (std::size_t row = 0; row < batch.rows(); ++row) {
        data::read_window(tokens, sampler.first_token(cursor++), batch, row);
      }
    }
  }
}

double Trainer::sum_losses() {
  const std::span<const double> losses = engine().losses();
  if (!rank_sums_) return std::accumulate(losses.begin(), losses.end(), 0.0);
  rank_sums_->gather();
  return rank_sums_->loss();
}

/// Sums up what the step has left on all ranks. A stage knows nothing of other stages' blocks, and
/// the loss is the last one's.
void Trainer::sum_up() {
  const double loss = sum_losses();
  std::ranges::fill(squares_, 0.0);
  for (std::uint32_t block = 0; block < workload().blocks.size(); ++block) {
    if (workload().blocks[block].padded_parameters == ElementCount{}) continue;
    squares_[block] =
        cpu_adam::sum_leaves(rank_sums_ ? rank_sums_->leaves(block) : norm_leaves(block));
  }
  if (workload().runs(workload().head_layer())) squares_.back() = loss;
  stage_sums_.add_up(squares_);
}

StepResult Trainer::step(const data::TokenFile& tokens, const data::Sampler& sampler) {
  const auto begin = std::chrono::steady_clock::now();
  fetch(tokens, sampler);
  StepResult result;
  result.tokens = plan::tokens_of_step(workload());
  result.scale = state_.loss_scale.scale;
  engine().actions().step().loss_gradient_scale =
      static_cast<float>(result.scale / static_cast<double>(result.tokens));
  run_step();

  sum_up();
  result.loss = squares_.back() / static_cast<double>(result.tokens);
  const double squares = std::accumulate(squares_.begin(), squares_.end() - 1, 0.0);
  result.grad_norm = std::sqrt(squares) / result.scale;
  state_.cursor += std::uint64_t{options().micro_batch} * options().gradient_accumulation_steps *
                   workload().ranks.count;
  result.step = ++state_.step;
  decide_update(options(), state_, result, pending_);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

Evaluation Trainer::evaluate(const data::TokenFile& tokens) {
  flush(Commits::no);
  sound_ = false;
  const Evaluation evaluation =
      engine::evaluate(engine(), *evaluation_executor_, tokens, stage_sums_);
  sound_ = true;
  return evaluation;
}

}  // namespace spillway::engine
