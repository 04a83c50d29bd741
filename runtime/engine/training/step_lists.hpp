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

  [[nodiscard]] const plan::StepPlan& step_plan() const { return by_phase_.front().step->plan(); }
  /// Number of ops of a step that also writes what lives in memory.
  [[nodiscard]] std::size_t most_ops() const {
    return by_phase_.front().recorded->plan().ops.size();
  }

 private:
  std::unique_ptr<Executor> snapshot_;
  std::vector<OfStep> by_phase_;
};

}  // namespace spillway::engine
