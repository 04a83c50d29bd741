#include "runtime/engine/embedded/pass_gate.hpp"

namespace spillway::engine {

void PassGate::close(WakeSignal& wake) {
  const std::lock_guard lock(mutex_);
  wake_ = &wake;
  runs_ = true;
  for (Block& block : blocks_) {
    block.forward = block.backward = false;
    block.complete = false;
  }
}

void PassGate::open(bool& pass, const ExternalPass& which) {
  {
    const std::lock_guard lock(mutex_);
    pass = true;
    blocks_[which.block].pass = which;
  }
  changed_.notify_all();
}

Ticket PassGate::forward(const ExternalPass& pass) {
  open(blocks_[pass.block].forward, pass);
  if (ends_ == Ends::backward) return {};
  return {*this, pass.block};
}

Ticket PassGate::backward(const ExternalPass& pass) {
  open(blocks_[pass.block].backward, pass);
  return {*this, pass.block};
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

bool PassGate::has_begun_forward(std::uint32_t block) {
  const std::lock_guard lock(mutex_);
  return blocks_[block].forward;
}

ExternalPass PassGate::pass(std::uint32_t block) {
  const std::lock_guard lock(mutex_);
  return blocks_[block].pass;
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
