// EmbeddedParts: what an embedded trainer is made of, in the order in which it is made. Each call
// of the trainer is done by one part, after the parts are at rest where the call wants that.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/engine/embedded/checkpoint/checkpoints.hpp"
#include "runtime/engine/embedded/fork_guard.hpp"
#include "runtime/engine/embedded/gradients/gradient_counts.hpp"
#include "runtime/engine/embedded/gradients/gradients.hpp"
#include "runtime/engine/embedded/passes/deferred_updates.hpp"
#include "runtime/engine/embedded/passes/pass_gate.hpp"
#include "runtime/engine/embedded/passes/plan_lists.hpp"
#include "runtime/engine/embedded/passes/plan_runner.hpp"
#include "runtime/engine/embedded/passes/unit_passes.hpp"
#include "runtime/engine/embedded/passes/use_record.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/embedded/update/step_end.hpp"
#include "runtime/engine/embedded/update/updates.hpp"
#include "runtime/engine/embedded/values/parameter_state.hpp"
#include "runtime/engine/embedded/values/values.hpp"
#include "runtime/engine/embedded_trainer.hpp"
#include "runtime/engine/training/step_cycle.hpp"

namespace spillway::engine {

struct EmbeddedParts {
  EmbeddedParts(const EmbeddedOptions& wanted, std::span<const EmbeddedParameter> parameters,
                std::span<const FrozenTensor> frozen);
  /// Comes to rest.
  ~EmbeddedParts();
  EmbeddedParts(const EmbeddedParts&) = delete;
  EmbeddedParts& operator=(const EmbeddedParts&) = delete;

  /// Throw `Error{invalid_argument}` for a number that nothing has, and in a forked process.
  [[nodiscard]] const ParameterRange& range(std::uint32_t parameter) const;
  [[nodiscard]] const FrozenRange& frozen_range(std::uint32_t frozen) const;

  /// Throws `Error{invalid_argument}` while the device is released.
  void check_device() const;
  /// Returns once nothing runs, and no update is pending. Gradients of the step under way wait on.
  void rest();
  /// Rests likewise. Throws `Error{invalid_argument}` if the step has gradients already.
  void park();
  /// Blocks until nothing runs; an update that is decided is applied, unless an error prevents it.
  void come_to_rest() noexcept;

  ForkGuard process;
  EmbeddedOptions options;
  const EmbeddedLayout layout;
  PassGate gate;
  StepEngine engine;
  StepCycle cycle;
  EmbeddedValues values;
  ParameterState state;
  UseRecord record;
  PlanLists lists;
  EmbeddedUpdates updates;
  Checkpoints checkpoints;
  PlanRunner runner;  // ends before all that it runs
  UnitPasses passes;
  DeferredUpdates deferred;
  GradientCounts gradient_counts;
  EmbeddedGradients gradients;
  StepEnd step_end;
};

}  // namespace spillway::engine
