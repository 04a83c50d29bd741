// PassGate: where the threads of another framework and the control thread meet. The plan opens a
// block for a pass; the framework says when the pass is over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/mutex.hpp"
#include "runtime/base/ticket.hpp"
#include "runtime/base/wake_signal.hpp"
#include "runtime/engine/step/external_framework.hpp"

namespace spillway::engine {

/// Which passes somebody has to end. The others are over as they begin.
enum class Ends : std::uint8_t { backward, both };

class PassGate final : public ExternalFramework, public TicketSource {
 public:
  PassGate(std::size_t blocks, Ends ends) : ends_(ends), complete_(blocks), blocks_(blocks) {}

  /// Closes every block, ahead of a plan and while none runs, and returns the plan's number. `wake`
  /// wakes the thread that will run it.
  std::uint64_t close(WakeSignal& wake);

  // Control thread

  [[nodiscard]] Ticket forward(const ExternalPass& pass) override;
  [[nodiscard]] Ticket backward(const ExternalPass& pass) override;
  [[nodiscard]] bool ready(std::uint32_t block) override;
  /// Returns at once: a pass that a failed plan still expects never comes.
  void finish(std::uint32_t /*block*/) override {}
  /// Wakes all threads that wait: no plan runs any more.
  void release();

  // Any thread

  /// Blocks until the block's pass has begun in that plan, or the plan is over. Returns false if
  /// the plan has failed before. `plan`: a number that `close` has returned.
  [[nodiscard]] bool wait_for_forward(std::uint32_t block, std::uint64_t plan) {
    return wait(block, &Block::forward, plan);
  }
  [[nodiscard]] bool wait_for_backward(std::uint32_t block, std::uint64_t plan) {
    return wait(block, &Block::backward, plan);
  }
  /// Whether the block's forward has begun in that plan, or the plan is over.
  [[nodiscard]] bool has_begun_forward(std::uint32_t block, std::uint64_t plan);
  /// Returns the block's pass that began last: where its parameters are.
  [[nodiscard]] ExternalPass pass(std::uint32_t block);
  /// Ends the passes of the block in this plan: one that has not begun is over as it begins.
  void complete(std::uint32_t block);
  void complete_all();

 private:
  struct Block {
    bool forward = false;   ///< has begun
    bool backward = false;  ///< has begun
    ExternalPass pass;
  };
  void open(bool Block::*begins, const ExternalPass& which);
  [[nodiscard]] bool wait(std::uint32_t block, bool Block::*begun, std::uint64_t plan);
  [[nodiscard]] bool is_over(std::uint64_t plan) const SPILLWAY_REQUIRES(mutex_) {
    return plan_ != plan;
  }

  const Ends ends_;
  std::vector<std::atomic<bool>> complete_;  ///< by block; the control thread reads it unlocked

  Mutex mutex_;
  Condition changed_;
  std::vector<Block> blocks_ SPILLWAY_GUARDED_BY(mutex_);
  std::uint64_t plan_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< how many have begun
  bool runs_ SPILLWAY_GUARDED_BY(mutex_) = false;
  WakeSignal* wake_ SPILLWAY_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace spillway::engine
