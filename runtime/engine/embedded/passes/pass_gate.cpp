#include "runtime/engine/embedded/passes/pass_gate.hpp"

namespace spillway::engine {

std::uint64_t PassGate::close(WakeSignal& wake) {
  const Lock lock(mutex_);
  wake_ = &wake;
  runs_ = true;
  for (Block& block : blocks_) block.forward = block.backward = false;
  for (std::atomic<bool>& complete : complete_) complete = false;
  // A thread that was woken for a pass of the last plan, and has not looked yet, finds it over.
  changed_.notify_all();
  return ++plan_;
}

void PassGate::open(bool Block::*begins, const ExternalPass& which) {
  {
    const Lock lock(mutex_);
    Block& block = blocks_[which.block];
    block.*begins = true;
    block.pass = which;
  }
  changed_.notify_all();
}

Ticket PassGate::forward(const ExternalPass& pass) {
  open(&Block::forward, pass);
  if (ends_ == Ends::backward) return {};
  return {*this, pass.block};
}

Ticket PassGate::backward(const ExternalPass& pass) {
  open(&Block::backward, pass);
  return {*this, pass.block};
}

bool PassGate::ready(std::uint32_t block) {
  return complete_[block].load(std::memory_order_acquire);
}

void PassGate::release() {
  {
    const Lock lock(mutex_);
    runs_ = false;
  }
  changed_.notify_all();
}

bool PassGate::wait(std::uint32_t block, bool Block::*begun, std::uint64_t plan) {
  Lock lock(mutex_);
  const bool& reached = blocks_[block].*begun;
  while (!reached && !is_over(plan) && runs_) changed_.wait(lock);
  return reached || is_over(plan);
}

bool PassGate::has_begun_forward(std::uint32_t block, std::uint64_t plan) {
  const Lock lock(mutex_);
  return blocks_[block].forward || is_over(plan);
}

ExternalPass PassGate::pass(std::uint32_t block) {
  const Lock lock(mutex_);
  return blocks_[block].pass;
}

void PassGate::complete(std::uint32_t block) {
  const Lock lock(mutex_);
  complete_[block].store(true, std::memory_order_release);
  wake_->notify();
}

void PassGate::complete_all() {
  const Lock lock(mutex_);
  for (std::atomic<bool>& each : complete_) each.store(true, std::memory_order_release);
  wake_->notify();
}

}  // namespace spillway::engine
