#include "runtime/engine/embedded/pass_gate.hpp"

namespace spillway::engine {

std::uint64_t PassGate::close(WakeSignal& wake) {
  const std::lock_guard lock(mutex_);
  wake_ = &wake;
  runs_ = true;
  for (Block& block : blocks_) {
    block.forward = block.backward = false;
    block.complete = false;
  }
  // Who was woken for a pass of the plan before, and has not come to see it, sees its end.
  changed_.notify_all();
  return ++plan_;
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

bool PassGate::wait(const bool& reached, std::uint64_t plan) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return plan_ != plan; };
  changed_.wait(lock, [&] { return reached || is_over() || !runs_; });
  return reached || is_over();
}

bool PassGate::has_begun_forward(std::uint32_t block, std::uint64_t plan) {
  const std::lock_guard lock(mutex_);
  return blocks_[block].forward || plan_ != plan;
}

ExternalPass PassGate::pass(std::uint32_t block) {
  const std::lock_guard lock(mutex_);
  return blocks_[block].pass;
}

void PassGate::complete(std::uint32_t block) {
  const std::lock_guard lock(mutex_);
  blocks_[block].complete.store(true, std::memory_order_release);
  wake_->notify();
}

void PassGate::complete_all() {
  const std::lock_guard lock(mutex_);
  for (Block& block : blocks_) block.complete.store(true, std::memory_order_release);
  wake_->notify();
}

}  // namespace spillway::engine
