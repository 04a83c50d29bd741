// What a measurement learns of other processes' load.
#include "runtime/engine/machine/other_load.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <thread>

#include "tests/engine/training_harness.hpp"

namespace spillway::engine::other_load_test {
namespace {

std::size_t first_usable_core() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  sched_getaffinity(0, sizeof usable, &usable);
  std::size_t core = 0;
  while (!CPU_ISSET(core, &usable)) ++core;
  return core;
}

class ToldLoad : public testing::Test {
 protected:
  /// A file as /proc/stat, with idle time and time of interrupts of one core, in seconds.
  void tell(std::size_t core, double idle, double interrupts) {
    const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    std::ofstream(stat_) << "cpu  9 9 9 9 9 9 9 9 0 0\n"
                         << "cpu" << core << " 0 0 0 " << static_cast<long>(idle * ticks) << " 0 "
                         << static_cast<long>(interrupts * ticks) << " 0 0 0 0\n"
                         << "intr 9 9 9\n";
  }
  void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(120)); }

  ScratchDirectory scratch_{"other_load"};
  std::filesystem::path stat_ = scratch_.path() / "stat";
};

TEST_F(ToldLoad, IsWhatTheCoresDidBesideThisProcess) {
  tell(first_usable_core(), 0, 0);
  const OtherLoad load(stat_);
  wait();
  tell(first_usable_core(), 100, 1000);
  EXPECT_GT(load.cores(), 500);  // 1000 s within a fraction of one
  ASSERT_TRUE(load.note());
  EXPECT_THAT(*load.note(), testing::HasSubstr("cores busy while this machine was measured"));
}

TEST_F(ToldLoad, LeavesOutIdleTimeAndCoresOfOthers) {
  tell(first_usable_core(), 0, 0);
  const OtherLoad load(stat_);
  wait();
  tell(first_usable_core(), 1000, 0);
  EXPECT_EQ(load.cores(), 0);
  tell(CPU_SETSIZE - 1, 0, 1000);  // no machine of ours has so many
  EXPECT_EQ(load.cores(), 0);
  EXPECT_FALSE(load.note());
}

TEST_F(ToldLoad, LeavesOutWhatThisProcessDoes) {
  tell(first_usable_core(), 0, 0);
  const OtherLoad load(stat_);
  const std::clock_t end = std::clock() + CLOCKS_PER_SEC / 5;  // of processor time
  while (std::clock() < end) {
  }
  tell(first_usable_core(), 0, 0.1);  // less than this process has used
  EXPECT_EQ(load.cores(), 0);
}

TEST_F(ToldLoad, HasNoneWhereNobodyTells) {
  const OtherLoad load(scratch_.path() / "missing");
  wait();
  EXPECT_EQ(load.cores(), 0);
}

}  // namespace
}  // namespace spillway::engine::other_load_test
