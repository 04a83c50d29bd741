// StepLists: the lists that keep a state in training, each ready to run: of steps, of updates
// alone, and of the state as it lies in memory. Control thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/step/step_engine.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::engine {

class StepLists {
 public:
  /// The lists of one step. In a pipeline that stays full, a few of these take turns.
  struct OfStep {
    std::unique_ptr<Executor> step;
    std::unique_ptr<Executor> recorded;  ///< the step, which also writes what lives in memory
    std::unique_ptr<Executor> flush;     ///< the pending update alone
    std::unique_ptr<Executor> fill;      ///< of a pipeline that stays full; else null
    /// Where the placement has speculative blocks, else null: the step that updates them ahead; and
    /// the lists that find them updated by the step before.
    std::unique_ptr<Executor> speculating, step_behind, speculating_behind, flush_behind;
  };

  /// Makes all lists ready to run on `engine`.
  explicit StepLists(StepEngine& engine);

  /// Returns the lists that go on after so many steps.
  [[nodiscard]] const OfStep& after(std::uint64_t steps) const {
    return by_phase_[steps % by_phase_.size()];
  }
  [[nodiscard]] std::span<const OfStep> by_phase() const { return by_phase_; }
  /// Returns the list that writes the state as it lies in memory.
  [[nodiscard]] Executor& snapshot() const { return *snapshot_; }

  /// Returns the list of a step behind many others, as it was planned.
  [[nodiscard]] const plan::StepPlan& step_plan() const;
  /// Number of ops of the longest list of a step.
  [[nodiscard]] std::size_t most_ops() const;

 private:
  std::unique_ptr<Executor> snapshot_;
  std::vector<OfStep> by_phase_;
};

}  // namespace spillway::engine
