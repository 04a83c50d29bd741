// WakeSignal: how workers, streams and the kernel wake the control thread.
#pragma once

#include <chrono>

namespace spillway {

/// An eventfd. Any thread may notify; one thread, the control thread, waits. Notifications that
/// arrive before a wait are not lost and many may be answered by one wake.
class WakeSignal {
 public:
  WakeSignal();
  ~WakeSignal();
  WakeSignal(const WakeSignal&) = delete;
  WakeSignal& operator=(const WakeSignal&) = delete;

  void notify() noexcept;
  /// Waits for a notification, but no longer than `limit`.
  void wait_for(std::chrono::microseconds limit);
  /// Returns the descriptor, for registration with io_uring or epoll. Owned by this object.
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace spillway
