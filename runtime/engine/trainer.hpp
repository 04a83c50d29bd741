// Trainer: one training run in memory. Takes batches, runs the step plan and decides the update. It
// knows nothing of files other than the tile store; the loop around it does. Control thread only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/data/micro_batch.hpp"
#include "runtime/data/sampler.hpp"
#include "runtime/engine/evaluation.hpp"
#include "runtime/engine/rank_sums.hpp"
#include "runtime/engine/stage_sums.hpp"
#include "runtime/engine/step_cycle.hpp"
#include "runtime/engine/step_result.hpp"
#include "runtime/engine/update_decision.hpp"

namespace spillway::engine {

/// A base class, so that it is made before and destroyed after what uses the model.
struct OwnedModel {
  ModelRuntime owned;
};

class Trainer final : private OwnedModel, public StepCycle {
 public:
  /// Allocates everything that the placement names.
  Trainer(const EngineSetup& setup, ModelRuntime model);

  /// The state after a step that diverged is whole and can be committed; another step would diverge
  /// too.
  StepResult step(const data::TokenFile& tokens, const data::Sampler& sampler);
  /// Mean loss over all whole windows of `tokens`, in file order.
  Evaluation evaluate(const data::TokenFile& tokens);

  /// Returns the store of the state.
  [[nodiscard]] const nvme_swap::TileStore& store() const { return *engine().store(); }
  [[nodiscard]] const model::ModelLayout& layout() const { return owned.transformer->layout(); }

 private:
  void fetch(const data::TokenFile& tokens, const data::Sampler& sampler);
  [[nodiscard]] double sum_losses();
  void sum_up();

  std::optional<RankSums> rank_sums_;  // where the stage has several ranks
  StageSums stage_sums_;
  std::vector<double> squares_;  // by block, of the last step's gradient; behind them its loss
  std::unique_ptr<Executor> evaluation_executor_;
};

}  // namespace spillway::engine
