// PlanRunner: the control thread of an embedded trainer, and what it does at the moment.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <thread>

#include "runtime/base/mutex.hpp"
#include "runtime/engine/embedded/passes/pass_gate.hpp"
#include "runtime/engine/embedded/passes/plan_lists.hpp"

namespace spillway::engine {

/// Any thread may call; calls that begin or end a plan, one at a time. If a plan has failed,
/// everything but the getters throws its error.
class PlanRunner {
 public:
  enum class Phase : std::uint8_t {
    parked,    ///< no plan runs, and nothing waits for one
    running,   ///< a plan runs
    gathered,  ///< none runs, and the norms of the step's gradients can be had
    failed,    ///< a plan has failed
  };

  /// Starts the thread. Both arguments outlive this object.
  PlanRunner(PlanLists& lists, PassGate& gate);
  /// Waits for the plan under way, which must not wait for passes.
  ~PlanRunner();
  PlanRunner(const PlanRunner&) = delete;
  PlanRunner& operator=(const PlanRunner&) = delete;

  [[nodiscard]] Phase phase() const;
  void check_sound() const SPILLWAY_EXCLUDES(mutex_);
  /// Whether that plan runs.
  [[nodiscard]] bool runs(EmbeddedPlan plan) const;
  /// Returns the number that the gate has given to the last plan that was started.
  [[nodiscard]] std::uint64_t number() const;
  /// Returns the number of the plan under way if it began with an update, beside the next passes.
  [[nodiscard]] std::optional<std::uint64_t> update() const;
  /// Starts a plan, unless one runs.
  void start(EmbeddedPlan plan);
  /// Ends all passes of the plan under way, and blocks until it is over.
  void finish() SPILLWAY_EXCLUDES(mutex_);
  /// Ends the plan under way likewise, and discards its results.
  void park();

 private:
  void run();

  PlanLists& lists_;
  PassGate& gate_;

  mutable Mutex mutex_;
  Condition changed_;
  Phase phase_ SPILLWAY_GUARDED_BY(mutex_) = Phase::parked;
  EmbeddedPlan plan_ SPILLWAY_GUARDED_BY(mutex_) = EmbeddedPlan::step;  ///< that runs
  std::uint64_t number_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< of it, or of the last one
  bool updates_ SPILLWAY_GUARDED_BY(mutex_) = false;      ///< it began with an update
  bool stops_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ SPILLWAY_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace spillway::engine
