#include "runtime/base/fine_timer.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <thread>
#include <vector>

namespace spillway::fine_timer_test {
namespace {

int slack_ns() { return ::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL); }

/// The slack of a thread that had `before`: with a FineTimer, and once that is gone.
std::vector<int> slacks_of_thread_with(unsigned long before) {
  std::vector<int> slacks;
  std::thread([&] {
    ::prctl(PR_SET_TIMERSLACK, before, 0UL, 0UL, 0UL);
    {
      const FineTimer on_time;
      slacks.push_back(slack_ns());
    }
    slacks.push_back(slack_ns());
  }).join();
  return slacks;
}

TEST(FineTimer, LastsAsLongAsItsScope) {
  EXPECT_EQ(slacks_of_thread_with(50'000), (std::vector<int>{1000, 50'000}));
  EXPECT_EQ(slacks_of_thread_with(7'000), (std::vector<int>{1000, 7'000}));
}

TEST(FineTimer, LeavesAFinerOneAlone) {
  EXPECT_EQ(slacks_of_thread_with(1), (std::vector<int>{1, 1}));
}

TEST(FineTimer, LeavesOtherThreadsAlone) {
  const FineTimer on_time;
  const std::vector<int> slacks = slacks_of_thread_with(30'000);
  EXPECT_EQ(slacks.back(), 30'000);
  EXPECT_LE(slack_ns(), 1000);
}

}  // namespace
}  // namespace spillway::fine_timer_test
