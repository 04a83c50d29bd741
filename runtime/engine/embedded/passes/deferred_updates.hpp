// DeferredUpdates: the framework's waits for updates that run beside its next passes. `wait` may be
// called by any number of threads, one at a time for one parameter; the rest while none does.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/engine/embedded/passes/pass_gate.hpp"
#include "runtime/engine/embedded/passes/plan_runner.hpp"
#include "runtime/engine/embedded/passes/unit_passes.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"

namespace spillway::engine {

class DeferredUpdates {
 public:
  /// All arguments outlive this object.
  DeferredUpdates(const EmbeddedLayout& layout, PassGate& gate, PlanRunner& runner,
                  UnitPasses& passes);

  /// Blocks until the parameter has every update that was decided, as EmbeddedTrainer::wait.
  void wait(std::uint32_t parameter);
  /// Throws `Error{invalid_argument}` if the deferred update of a parameter may have run while its
  /// values were written: nobody has waited for it.
  void check_waited(std::uint32_t parameter) const;

 private:
  const EmbeddedLayout& layout_;
  PassGate& gate_;
  PlanRunner& runner_;
  UnitPasses& passes_;
  /// By block that is not streamed: number of the last update that the framework has waited for.
  std::vector<std::atomic<std::uint64_t>> waited_;
};

}  // namespace spillway::engine
