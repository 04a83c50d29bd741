// FineTimer: timed waits of the calling thread that end on time.
#pragma once

namespace spillway {

/// While it lives, timed waits of its thread end within a microsecond of their time, where Linux
/// lets them take 50 us more. Made and destroyed on one thread, which may be somebody else's: what
/// the thread had before comes back.
class FineTimer {
 public:
  FineTimer() noexcept;
  ~FineTimer();
  FineTimer(const FineTimer&) = delete;
  FineTimer& operator=(const FineTimer&) = delete;

 private:
  const int slack_before_ns_;  ///< negative where the kernel does not tell
};

}  // namespace spillway
