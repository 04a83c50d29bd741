// UnitPasses: the passes of streamed parameters. The framework enters a unit for a pass, and leaves
// it. One thread enters and leaves; `await_update` may be called beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/mutex.hpp"
#include "runtime/engine/embedded/passes/pass_gate.hpp"
#include "runtime/engine/embedded/passes/plan_runner.hpp"
#include "runtime/engine/embedded/plan/embedded_plan.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/embedded/values/values.hpp"

namespace spillway::engine {

class UnitPasses {
 public:
  /// All arguments outlive this object.
  UnitPasses(const EmbeddedLayout& layout, EmbeddedValues& values, PassGate& gate,
             PlanRunner& runner);

  /// Starts a plan. Blocks of no unit have no passes, and units wait for them to be entered.
  void begin(EmbeddedPlan plan);

  // As EmbeddedTrainer describes these

  void enter(std::uint32_t unit, EmbeddedPass pass) SPILLWAY_EXCLUDES(mutex_);
  void leave(std::uint32_t unit, const offload::ExternalWork& readers) SPILLWAY_EXCLUDES(mutex_);
  void forget_uploads() SPILLWAY_EXCLUDES(mutex_);

  /// Returns where a parameter, or a frozen tensor, of the entered unit lies on the device. Throws
  /// `Error{invalid_argument}` for one of another unit.
  [[nodiscard]] std::span<std::byte> parameter(std::uint32_t parameter) SPILLWAY_EXCLUDES(mutex_);
  [[nodiscard]] std::span<std::byte> frozen(std::uint32_t frozen) SPILLWAY_EXCLUDES(mutex_);
  /// Throws while a unit is entered: a plan that ends, or another one, gives its memory away.
  void check_left() const SPILLWAY_EXCLUDES(mutex_);
  /// Ends the passes of the plan that began with that update, whose number the gate has given, and
  /// blocks until it is over.
  void await_update(std::uint32_t parameter, std::uint64_t update) SPILLWAY_EXCLUDES(mutex_);

 private:
  void check_unit(std::uint32_t unit) const;
  void check_inside(std::uint32_t block, const std::string& name) const SPILLWAY_EXCLUDES(mutex_);

  const EmbeddedLayout& layout_;
  EmbeddedValues& values_;
  PassGate& gate_;
  PlanRunner& runner_;

  mutable Mutex mutex_;
  std::optional<std::uint32_t> inside_ SPILLWAY_GUARDED_BY(mutex_);
  /// Number of units that the pass under way has entered or passed over, in its order. Only the
  /// threads that enter units and that step use it, one at a time.
  std::uint32_t entered_ = 0;
};

}  // namespace spillway::engine
