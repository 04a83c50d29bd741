#include "nvme_swap/detail/held_results.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/base/thread.hpp"

namespace spillway::nvme_swap::detail {

HeldResults::HeldResults(std::size_t capacity, WakeSignal* wake) : wake_(wake) {
  held_.reserve(capacity);
}

HeldResults::~HeldResults() {
  if (!timer_.joinable()) return;
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  timer_.join();
}

void HeldResults::hold(const IoResult& result, Clock::time_point due) {
  SPILLWAY_ASSERT(held_.size() < held_.capacity());
  const auto place = std::find_if(held_.begin(), held_.end(),
                                  [due](const Held& other) { return other.due <= due; });
  held_.insert(place, Held{.result = result, .due = due});
  schedule();
}

std::size_t HeldResults::take_due(std::span<IoResult> results) {
  if (held_.empty()) return 0;
  const Clock::time_point now = Clock::now();
  std::size_t count = 0;
  while (count < results.size() && !held_.empty() && held_.back().due <= now) {
    results[count++] = held_.back().result;
    held_.pop_back();
  }
  schedule();
  return count;
}

void HeldResults::wait_for_first() const { std::this_thread::sleep_until(held_.back().due); }

void HeldResults::schedule() {
  if (wake_ == nullptr) return;
  {
    const Lock lock(mutex_);
    next_ = held_.empty() ? std::nullopt : std::optional(held_.back().due);
  }
  if (!timer_.joinable() && !held_.empty()) timer_ = start_thread("results", [this] { run(); });
  changed_.notify_one();
}

void HeldResults::run() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (!next_) {
      changed_.wait(lock);
    } else if (Clock::now() >= *next_) {
      next_.reset();
      wake_->notify();
    } else {
      const Clock::time_point due = *next_;
      changed_.wait_until(lock, due);
    }
  }
}

}  // namespace spillway::nvme_swap::detail
