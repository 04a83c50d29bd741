#include "runtime/engine/trainer.hpp"

#include <chrono>
#include <cmath>
#include <utility>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/config/schedule.hpp"

namespace spillway::engine {

Trainer::Trainer(const EngineSetup& setup, ModelRuntime runtime)
    : OwnedModel{std::move(runtime)},
      StepCycle(setup, owned),
      evaluation_executor_(engine().prepare(plan::build_evaluation(workload(), placement()))) {
  if (setup.start == Start::resumed) return;
  state_.loss_scale =
      config::initial_loss_scale(options().loss_scale, options().compute == DType::fp16);
}

void Trainer::fetch(const data::TokenFile& tokens, const data::Sampler& sampler) {
  std::uint64_t cursor = state_.cursor;
  for (std::uint32_t round = 0; round < workload().rounds; ++round) {
    for (std::uint32_t m = 0; m < workload().micro_batches; ++m) {
      const data::MicroBatch batch = engine().batch(round * workload().micro_batches + m);
      for (std::size_t row = 0; row < batch.rows(); ++row) {
        data::read_window(tokens, sampler.first_token(cursor++), batch, row);
      }
    }
  }
}

double Trainer::reduce_norm() {
  double total = 0;
  for (std::uint32_t block = 0; block < workload().blocks.size(); ++block) {
    total += cpu_adam::sum_leaves(norm_leaves(block));
  }
  return std::sqrt(total);
}

StepResult Trainer::step(const data::TokenFile& tokens, const data::Sampler& sampler) {
  const auto begin = std::chrono::steady_clock::now();
  fetch(tokens, sampler);
  StepResult result;
  result.tokens = workload().tokens * workload().micro_batches * workload().rounds;
  result.scale = state_.loss_scale.scale;
  engine().actions().step().loss_gradient_scale =
      static_cast<float>(result.scale / static_cast<double>(result.tokens));
  run_step();

  for (const double loss : engine().losses()) result.loss += loss;
  result.loss /= static_cast<double>(result.tokens);
  result.grad_norm = reduce_norm() / result.scale;
  state_.cursor += std::uint64_t{options().micro_batch} * options().gradient_accumulation_steps;
  result.step = ++state_.step;
  decide_update(options(), state_, result, pending_);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

Evaluation Trainer::evaluate(const data::TokenFile& tokens) {
  flush(Commits::no);
  sound_ = false;
  const Evaluation evaluation = engine::evaluate(engine(), *evaluation_executor_, tokens);
  sound_ = true;
  return evaluation;
}

}  // namespace spillway::engine
