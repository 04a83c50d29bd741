#include "offload/host/detail/stream_progress.hpp"

#include <utility>

namespace spillway::offload::host {

void StreamProgress::throw_if_failed(std::uint64_t position) const {
  if (failure_ == nullptr || position < failed_at_) return;
  reported_.store(true, std::memory_order_relaxed);
  std::rethrow_exception(failure_);
}

bool StreamProgress::reached(std::uint64_t position) const {
  if (completed() < position) return false;
  throw_if_failed(position);
  return true;
}

void StreamProgress::wait_regardless(std::uint64_t position) const noexcept {
  if (completed() >= position) return;
  Lock lock(mutex_);
  sleepers_.fetch_add(1);
  while (completed_.load() < position) advanced_.wait(lock);
  sleepers_.fetch_sub(1);
}

void StreamProgress::wait_until(std::uint64_t position) const {
  wait_regardless(position);
  throw_if_failed(position);
}

void StreamProgress::advance(std::exception_ptr failure) noexcept {
  const std::uint64_t next = completed_.load(std::memory_order_relaxed) + 1;
  if (failure != nullptr) {
    failure_ = std::move(failure);
    failed_at_ = next;
  }
  // Sequentially consistent with the sleeper's increment and check: either it sees this position or
  // this thread sees the sleeper.
  completed_.store(next);
  if (sleepers_.load() == 0) return;
  { const Lock lock(mutex_); }
  advanced_.notify_all();
}

std::exception_ptr StreamProgress::unreported_failure() const {
  return reported_.load(std::memory_order_relaxed) ? nullptr : failure_;
}

}  // namespace spillway::offload::host
