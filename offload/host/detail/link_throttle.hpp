// LinkThrottle: one direction of an ideal serial link, as a model in virtual time. Copies of all
// streams share it; a copy is not complete before the model says so.
//
// Threads: any.
#pragma once

#include <chrono>
#include <cstddef>

#include "runtime/base/mutex.hpp"

namespace spillway::offload::host {

class LinkThrottle {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LinkThrottle(double gigabytes_per_second)
      : nanoseconds_per_byte_(1.0 / gigabytes_per_second) {}

  /// Takes the link for `bytes` from `ready` or from when it is free, whichever is later, and
  /// returns when the transfer is over. `ready` may lie in the past: a worker that woke late then
  /// catches up, so that long transfers keep the configured rate.
  [[nodiscard]] Clock::time_point reserve(Clock::time_point ready, std::size_t bytes);

 private:
  const double nanoseconds_per_byte_;
  Mutex mutex_;
  Clock::time_point free_at_ SPILLWAY_GUARDED_BY(mutex_){};
  /// Part of a nanosecond, carried so that small copies lose nothing.
  double fraction_ SPILLWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace spillway::offload::host
