// Calls of one sort of which one fails, when it is its turn.
#pragma once

#include <atomic>
#include <cstdint>

namespace spillway::test_support {

/// Counter of the calls on all threads, while they are watched.
class FailingTurn {
 public:
  void begin(std::int64_t successes) { left_ = successes; }
  void watch(bool on) { watched_ = on; }
  /// Returns whether the call that asks is the one that fails.
  [[nodiscard]] bool comes() {
    return watched_.load(std::memory_order_relaxed) &&
           left_.fetch_sub(1, std::memory_order_relaxed) == 0;
  }
  [[nodiscard]] bool has_come() const { return left() < 0; }
  /// Returns how many calls succeed before the one that fails; below 0: it is over.
  [[nodiscard]] std::int64_t left() const { return left_; }

 private:
  std::atomic<bool> watched_{false};
  std::atomic<std::int64_t> left_{0};
};

/// Makes one call of a sort fail. One at a time.
template <FailingTurn& turn>
class Failing {
 public:
  /// So many succeed before it.
  explicit Failing(std::int64_t successes) { turn.begin(successes); }
  ~Failing() { turn.watch(false); }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;

  void watch(bool on) { turn.watch(on); }
  [[nodiscard]] bool has_failed() const { return turn.has_come(); }
};

}  // namespace spillway::test_support
