// PlanRunner: the control thread of an embedded trainer, and what it does at the moment.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/engine/embedded/cycle.hpp"
#include "runtime/engine/embedded/pass_gate.hpp"

namespace spillway::engine {

/// Any thread may call; those that begin or end something, one at a time. Everything but `phase`
/// throws what a plan has failed with, if one has.
class PlanRunner {
 public:
  enum class Phase : std::uint8_t {
    parked,    ///< no plan runs, and nothing waits for one
    running,   ///< the plan of a step runs: it applies an update, then waits for gradients
    gathered,  ///< it is over, and the gradients are complete
    applying,  ///< the plan of an update alone runs
    failed,    ///< a plan has failed
  };

  /// Both outlive this object.
  PlanRunner(EmbeddedCycle& cycle, PassGate& gate);
  /// Waits for the plan under way, which must not wait for gradients.
  ~PlanRunner();
  PlanRunner(const PlanRunner&) = delete;
  PlanRunner& operator=(const PlanRunner&) = delete;

  [[nodiscard]] Phase phase() const;
  void check_sound() const;
  /// Starts the plan of a step, unless it runs.
  void start();
  /// Ends it: its gradients are complete. Blocks until their norm can be had.
  void gather();
  /// Ends it, or forgets what it has gathered: its gradients are nobody's. Blocks until the update
  /// in it is applied.
  void park();
  /// Applies the pending update. Blocks.
  void apply();

 private:
  void run();
  void await(std::unique_lock<std::mutex>& lock, Phase over);

  EmbeddedCycle& cycle_;
  PassGate& gate_;
  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  Phase phase_ = Phase::parked;
  bool stops_ = false;
  bool parks_ = false;  ///< what the plan under way gathers is nobody's
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace spillway::engine
