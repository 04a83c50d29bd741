#include "runtime/model/host/seats.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>
#include <vector>

namespace spillway::model::seats_test {
namespace {

std::vector<unsigned> usable_processors() {
  cpu_set_t set;
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<unsigned> processors;
  for (unsigned i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

void bind(const std::vector<unsigned>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const unsigned processor : processors) CPU_SET(processor, &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

TEST(Seats, MoveTheSecondThreadOfAProcessorToAnother) {
  const std::vector<unsigned> usable = usable_processors();
  if (usable.size() < 2) GTEST_SKIP() << "one processor";
  int moved = 0;
  std::thread([&] {
    // A busy system may move a thread at any time, but hardly each of ten times.
    for (int i = 0; i < 10; ++i) {
      host::Seats seats;
      bind({usable[0]});
      seats.take_one();
      bind(usable);  // it stays where it is until the system moves it
      seats.take_one();
      moved += ::sched_getcpu() == static_cast<int>(usable[0]) ? 0 : 1;
      EXPECT_EQ(usable_processors(), usable);
    }
  }).join();
  EXPECT_GE(moved, 8);
}

TEST(Seats, LeaveAThreadThatMayGoNowhereElse) {
  const std::vector<unsigned> usable = usable_processors();
  std::thread([&] {
    bind({usable[0]});
    host::Seats seats;
    seats.take_one();
    seats.take_one();
    EXPECT_EQ(::sched_getcpu(), static_cast<int>(usable[0]));
    EXPECT_EQ(usable_processors(), std::vector{usable[0]});
  }).join();
}

}  // namespace
}  // namespace spillway::model::seats_test
