// PassGate: where the threads of another framework and the control thread meet. The plan opens a
// block for its gradients; the framework says when they are there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/base/ticket.hpp"
#include "runtime/base/wake_signal.hpp"
#include "runtime/engine/step/external_passes.hpp"

namespace spillway::engine {

class PassGate final : public ExternalPasses, public TicketSource {
 public:
  explicit PassGate(std::size_t blocks) : blocks_(blocks) {}

  /// Closes every block, ahead of a plan and while none runs. `wake` wakes who will run it.
  void close(WakeSignal& wake);
  // Control thread.
  [[nodiscard]] Ticket forward(std::uint32_t block) override;
  [[nodiscard]] Ticket backward(std::uint32_t block) override;
  [[nodiscard]] bool ready(std::uint32_t block) override;
  /// Does not wait: what a plan that failed still hopes for never comes.
  void finish(std::uint32_t /*block*/) override {}
  /// Lets go whoever waits: no plan runs.
  void release();

  // Any thread; each blocks until the plan is as far, or none runs any more. Returns whether it is.
  [[nodiscard]] bool wait_for_parameters(std::uint32_t block);
  [[nodiscard]] bool wait_for_gradient_memory(std::uint32_t block);

  // Any thread.
  void complete(std::uint32_t block);
  void complete_all();

 private:
  struct Block {
    bool parameters = false;       ///< have all updates
    bool gradient_memory = false;  ///< may be written
    std::atomic<bool> complete{false};
  };
  [[nodiscard]] bool wait(const bool& reached);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Block> blocks_;
  bool runs_ = false;
  WakeSignal* wake_ = nullptr;
};

}  // namespace spillway::engine
