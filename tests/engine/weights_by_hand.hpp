// WeightsByHand: what trains on weights that lack their last updates, and updates the newest ones,
// by a copy of all weights before each step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/engine/training/trainer.hpp"

namespace spillway::engine {

/// By block: how many updates are missing in the weights that a step trains on, at most those that
/// there were.
using Ages = std::vector<std::uint32_t>;

/// One rank without a pipeline. Its plans know one version of the weights, in host memory; whoever
/// runs them exchanges it, block by block.
class WeightsByHand {
 public:
  /// Steps before `first` train on the newest weights.
  WeightsByHand(EngineSetup setup, ModelRuntime model, Ages ages, std::uint64_t first = 1)
      : model_(std::move(model)),
        engine_(std::move(setup), model_),
        cycle_(engine_,
               {.loss_scale = config::initial_loss_scale(
                    engine_.options().loss_scale, engine_.options().compute == DType::fp16)}),
        ages_(std::move(ages)),
        first_(first) {}

  [[nodiscard]] const model::ModelLayout& layout() const { return model_.transformer->layout(); }
  [[nodiscard]] const StepEngine& engine() const { return engine_; }
  [[nodiscard]] StepCycle& cycle() { return cycle_; }

  /// W(t + 1) = W(t) - update of the gradient on W(t - age).
  StepResult step(const data::TokenFile& tokens, const data::Sampler& sampler) {
    const std::span<std::byte> weights = engine_.memory().all_host(plan::PoolKind::host_parameters);
    kept_.emplace_back(weights.begin(), weights.end());
    const auto blocks = static_cast<std::uint32_t>(engine_.workload().blocks.size());
    for (std::uint32_t block = 0; block < blocks; ++block) {
      const auto of_block =
          engine_.memory().host(engine_.slots().tiles_of(plan::PoolKind::host_parameters, block));
      const std::size_t wanted = kept_.size() < first_ ? 0 : ages_[block];
      const std::size_t age = std::min(wanted, kept_.size() - 1);
      const auto first = of_block.data() - weights.data();
      std::copy_n(kept_[kept_.size() - 1 - age].begin() + first, of_block.size(), of_block.begin());
    }
    TrainingState state = cycle_.state();
    for (std::uint32_t pass = 0; pass < plan::micro_batches_of_step(engine_.workload()); ++pass) {
      const data::MicroBatch batch = engine_.batch(pass);
      for (std::size_t row = 0; row < batch.rows(); ++row) {
        data::read_window(tokens, sampler.first_token(state.cursor++), batch, row);
      }
    }
    StepResult result;
    result.tokens = plan::tokens_of_step(engine_.workload());
    result.scale = state.loss_scale.scale;
    // No update is pending.
    cycle_.run_step(static_cast<float>(result.scale / static_cast<double>(result.tokens)));
    std::ranges::copy(kept_.back(), weights.begin());
    const auto losses = engine_.losses();
    result.loss =
        std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(result.tokens);
    double squares = 0;
    for (std::uint32_t block = 0; block < blocks; ++block) {
      squares += cpu_adam::sum_leaves(engine_.norm_leaves(block));
    }
    result.grad_norm = std::sqrt(squares) / result.scale;
    result.step = ++state.step;
    decide_update(engine_.options(), state, result, cycle_.next_update());
    cycle_.decide(state);
    cycle_.flush(Commit::no);
    return result;
  }

 private:
  ModelRuntime model_;
  StepEngine engine_;
  StepCycle cycle_;
  const Ages ages_;
  const std::uint64_t first_;
  std::vector<std::vector<std::byte>> kept_;  // by step
};

}  // namespace spillway::engine
