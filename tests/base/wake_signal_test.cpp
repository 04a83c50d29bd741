#include "runtime/base/wake_signal.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace spillway::wake_signal_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Long enough that no busy machine reaches it by itself.
constexpr milliseconds kNever{20'000};

bool woken(WakeSignal& signal) {
  const auto start = Clock::now();
  signal.wait_for(kNever);
  return Clock::now() - start < kNever / 2;
}

TEST(WakeSignal, ANotificationBeforeTheWaitIsNotLost) {
  WakeSignal signal;
  signal.notify();
  EXPECT_TRUE(woken(signal));
}

TEST(WakeSignal, ManyNotificationsAreAnsweredByOneWake) {
  WakeSignal signal;
  for (int i = 0; i < 100; ++i) signal.notify();
  EXPECT_TRUE(woken(signal));
  const auto start = Clock::now();
  signal.wait_for(milliseconds(20));  // nothing is left: sleeps until the limit
  EXPECT_GE(Clock::now() - start, milliseconds(19));
}

TEST(WakeSignal, ANewOneWakesNobody) {
  WakeSignal signal;
  const auto start = Clock::now();
  signal.wait_for(milliseconds(20));
  EXPECT_GE(Clock::now() - start, milliseconds(19));
}

TEST(WakeSignal, WakesASleeperFromAnyThread) {
  WakeSignal signal;
  for (int round = 0; round < 20; ++round) {
    std::thread notifier([&signal] {
      std::this_thread::sleep_for(milliseconds(1));
      signal.notify();
    });
    EXPECT_TRUE(woken(signal));
    notifier.join();
  }
}

TEST(WakeSignal, NoEventIsMissedByTheLoopThatChecksThenSleeps) {
  WakeSignal signal;
  std::atomic<int> work{0};
  constexpr int kEach = 2000;
  std::vector<std::thread> workers;
  for (int i = 0; i < 3; ++i) {
    workers.emplace_back([&] {
      for (int k = 0; k < kEach; ++k) {
        ++work;
        signal.notify();
      }
    });
  }
  const auto start = Clock::now();
  while (work.load() < 3 * kEach) signal.wait_for(kNever);
  EXPECT_LT(Clock::now() - start, kNever / 2);
  for (std::thread& worker : workers) worker.join();
}

}  // namespace
}  // namespace spillway::wake_signal_test
