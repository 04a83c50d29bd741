// PlanLists: the lists of ops of an embedded trainer's plans, ready to run. Nothing else may run
// meanwhile, whichever thread calls.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/engine/embedded/passes/use_record.hpp"
#include "runtime/engine/embedded/plan/embedded_plan.hpp"
#include "runtime/engine/embedded/values/parameter_state.hpp"
#include "runtime/engine/training/step_cycle.hpp"

namespace spillway::engine {

class PlanLists {
 public:
  /// Makes all lists ready that `cycle` has not. All arguments outlive this object.
  PlanLists(StepEngine& engine, StepCycle& cycle, ParameterState& state, UseRecord& record);

  void run(EmbeddedPlan plan);
  /// Whether the norms of all gradients of a step can be had after that plan.
  [[nodiscard]] bool gathers(EmbeddedPlan plan) const {
    return plan == gathering_plan(engine_.workload());
  }
  /// Whether an update is decided that no plan has applied.
  [[nodiscard]] bool has_pending() const { return cycle_.has_pending(); }
  /// Number of ops of the longest list.
  [[nodiscard]] std::size_t most_ops() const;
  /// Returns the signal that wakes the thread which runs a list.
  [[nodiscard]] WakeSignal& wake() { return engine_.wake(); }

 private:
  const Executor& run_list_of(EmbeddedPlan plan);

  StepEngine& engine_;
  StepCycle& cycle_;
  ParameterState& state_;
  UseRecord& record_;
  std::unique_ptr<Executor> backward_, norms_;  ///< of streamed parameters
};

}  // namespace spillway::engine
