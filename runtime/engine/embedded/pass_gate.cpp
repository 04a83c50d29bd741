#include "runtime/engine/embedded/pass_gate.hpp"

namespace spillway::engine {

void PassGate::close(WakeSignal& wake) {
  const std::lock_guard lock(mutex_);
  wake_ = &wake;
  runs_ = true;
  for (Block& block : blocks_) {
    block.parameters = block.gradient_memory = false;
    block.complete = false;
  }
}

Ticket PassGate::forward(std::uint32_t block) {
  {
    const std::lock_guard lock(mutex_);
    blocks_[block].parameters = true;
  }
  changed_.notify_all();
  return {};
}

Ticket PassGate::backward(std::uint32_t block) {
  {
    const std::lock_guard lock(mutex_);
    blocks_[block].gradient_memory = true;
  }
  changed_.notify_all();
  return {*this, block};
}

bool PassGate::ready(std::uint32_t block) {
  return blocks_[block].complete.load(std::memory_order_acquire);
}

void PassGate::release() {
  {
    const std::lock_guard lock(mutex_);
    runs_ = false;
  }
  changed_.notify_all();
}

bool PassGate::wait(const bool& reached) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached || !runs_; });
  return reached;
}

bool PassGate::wait_for_parameters(std::uint32_t block) { return wait(blocks_[block].parameters); }

bool PassGate::wait_for_gradient_memory(std::uint32_t block) {
  return wait(blocks_[block].gradient_memory);
}

void PassGate::complete(std::uint32_t block) {
  blocks_[block].complete.store(true, std::memory_order_release);
  wake_->notify();
}

void PassGate::complete_all() {
  for (Block& block : blocks_) block.complete.store(true, std::memory_order_release);
  wake_->notify();
}

}  // namespace spillway::engine
