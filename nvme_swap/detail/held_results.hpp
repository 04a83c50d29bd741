// HeldResults: results that an adaptor delivers later, and the thread that wakes the control thread
// when one is due. Control thread only; the thread starts with the first result held back.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "nvme_swap/io_engine.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/base/wake_signal.hpp"

namespace spillway::nvme_swap::detail {

class HeldResults {
 public:
  using Clock = std::chrono::steady_clock;

  HeldResults(std::size_t capacity, WakeSignal* wake);
  HeldResults(const HeldResults&) = delete;
  HeldResults& operator=(const HeldResults&) = delete;
  ~HeldResults();

  [[nodiscard]] bool empty() const { return held_.empty(); }
  [[nodiscard]] std::size_t size() const { return held_.size(); }
  void hold(const IoResult& result, Clock::time_point due);
  [[nodiscard]] std::size_t take_due(std::span<IoResult> results);
  /// Sleeps until the first result is due. Not when empty.
  void wait_for_first() const;

 private:
  struct Held {
    IoResult result;
    Clock::time_point due;
  };

  void schedule() SPILLWAY_EXCLUDES(mutex_);
  void run() SPILLWAY_EXCLUDES(mutex_);

  // Control thread.
  WakeSignal* const wake_;
  std::vector<Held> held_;  // the first due is last
  std::thread timer_;

  Mutex mutex_;
  Condition changed_;
  std::optional<Clock::time_point> next_ SPILLWAY_GUARDED_BY(mutex_);
  bool stopping_ SPILLWAY_GUARDED_BY(mutex_) = false;
};

}  // namespace spillway::nvme_swap::detail
