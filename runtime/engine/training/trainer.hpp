// Trainer: one training run in memory. Takes batches, runs the step plan and decides the update. It
// knows nothing of files other than the tile store; the loop around it does. Control thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/data/micro_batch.hpp"
#include "runtime/data/sampler.hpp"
#include "runtime/engine/step/step_result.hpp"
#include "runtime/engine/training/evaluation.hpp"
#include "runtime/engine/training/rank_sums.hpp"
#include "runtime/engine/training/step_cycle.hpp"
#include "runtime/engine/training/update_decision.hpp"

namespace spillway::engine {

/// What comes after a step: another one, or a copy of the state.
enum class Follows : std::uint8_t { step, copy };

class Trainer {
 public:
  /// Allocates everything that the placement names, and goes on from the store's commit if the
  /// setup resumes one.
  Trainer(EngineSetup setup, ModelRuntime model);

  /// Runs a step, and returns the results that are known then: that of this step or, of stages that
  /// meet after several (steps_of_sums), none, or those of all steps since they last met. They meet
  /// on both sides of a list that commits. The state after a step that diverged is whole and can be
  /// committed; another step would diverge too. The results are valid until the next step.
  /// Where the placement has speculative blocks, the step updates them ahead if the two before it
  /// were neither clipped nor skipped, and no copy `follows`, which would find some of its tiles
  /// written already.
  std::span<const StepResult> step(const data::TokenFile& tokens, const data::Sampler& sampler,
                                   Follows follows = Follows::step);
  /// Makes stages meet, and returns the results that no call has returned yet. All stages call it.
  std::span<const StepResult> gather_results();
  /// Whether no result is outstanding.
  [[nodiscard]] bool results_complete() const { return results_complete_; }
  /// Largest number of results at once.
  [[nodiscard]] std::size_t most_results() const { return steps_of_sums_; }
  /// Returns the mean loss over all whole windows of `tokens`, in file order.
  Evaluation evaluate(const data::TokenFile& tokens);

  [[nodiscard]] const TrainingState& state() const { return cycle_.state(); }
  /// Returns the state, its lists and its commits.
  [[nodiscard]] StepCycle& cycle() { return cycle_; }
  [[nodiscard]] const StepCycle& cycle() const { return cycle_; }
  [[nodiscard]] const StepEngine& engine() const { return engine_; }
  [[nodiscard]] const model::ModelLayout& layout() const { return model_.transformer->layout(); }

 private:
  void fetch(const data::TokenFile& tokens, const data::Sampler& sampler);
  void meet();
  void decide(StepResult& result);
  [[nodiscard]] const plan::Workload& workload() const { return engine_.workload(); }

  ModelRuntime model_;  // outlives the engine
  StepEngine engine_;
  StepCycle cycle_;
  const std::uint32_t steps_of_sums_;
  RankSums rank_sums_;               // of each result
  std::vector<StepResult> results_;  // since the stages have met
  std::uint32_t calm_steps_ = 0;     // in a row, whose updates were the expected ones
  bool results_complete_ = true;
  std::unique_ptr<Executor> evaluation_executor_;
};

}  // namespace spillway::engine
