// StreamProgress: how far one stream has come. An event is a position in it, so that recording an
// event again never disturbs those who wait for its earlier recording.
//
// Threads: one worker advances; any thread asks and waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>

#include "runtime/base/mutex.hpp"

namespace spillway::offload::host {

/// Entries of a stream are numbered from 1 in the order of submission; position p is reached once
/// entries 1..p are complete. Outlives its stream, because events may still ask about it.
class StreamProgress {
 public:
  /// Throws what the stream failed with at or before `position`.
  [[nodiscard]] bool reached(std::uint64_t position) const;
  /// Blocks until `position` is reached; throws as `reached` does.
  void wait_until(std::uint64_t position) const;
  /// Blocks until `position` is reached, well or badly.
  void wait_regardless(std::uint64_t position) const noexcept;

  /// Notes, for the worker, that one more entry is complete, with its failure if there is one.
  void advance(std::exception_ptr failure) noexcept;
  [[nodiscard]] std::uint64_t completed() const {
    return completed_.load(std::memory_order_acquire);
  }
  /// Returns the first failure if nobody has been told of it, else null. For the log of a dying
  /// stream.
  [[nodiscard]] std::exception_ptr unreported_failure() const;

 private:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  void throw_if_failed(std::uint64_t position) const;

  std::atomic<std::uint64_t> completed_{0};
  mutable std::atomic<bool> reported_{false};
  // Written once, before the `completed_` that makes them visible.
  std::uint64_t failed_at_ = kNever;
  std::exception_ptr failure_;
  // These are for sleepers; `mutex_` guards no member, but orders their check of `completed_`
  // before the notification.
  mutable Mutex mutex_;
  mutable Condition advanced_;
  mutable std::atomic<int> sleepers_{0};
};

}  // namespace spillway::offload::host
