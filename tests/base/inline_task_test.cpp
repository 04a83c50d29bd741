#include "runtime/base/inline_task.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace spillway::inline_task_test {
namespace {

static_assert(std::is_trivially_copyable_v<InlineTask>, "queues copy it as bytes");

TEST(InlineTask, AnEmptyOneSaysSo) {
  const InlineTask task{};
  EXPECT_FALSE(static_cast<bool>(task));
}

TEST(InlineTask, RunsItsCallableAndSoDoCopies) {
  int count = 0;
  InlineTask task([&count] { ++count; });
  ASSERT_TRUE(static_cast<bool>(task));
  InlineTask copy = task;
  task();
  copy();
  copy();
  EXPECT_EQ(count, 3);
}

TEST(InlineTask, CarriesItsWholeCapacity) {
  struct Payload {
    std::array<std::uint64_t, 29> numbers;
    std::uint64_t* sum;
  };
  static_assert(sizeof(Payload) == InlineTask::kCapacity);
  std::uint64_t sum = 0;
  Payload payload{.numbers = {}, .sum = &sum};
  for (std::uint64_t i = 0; i < payload.numbers.size(); ++i) payload.numbers[i] = i + 1;
  InlineTask task([payload] {
    for (const std::uint64_t number : payload.numbers) *payload.sum += number;
  });
  payload.numbers.fill(0);  // the task has its own copy
  task();
  EXPECT_EQ(sum, 29U * 30U / 2);
}

TEST(InlineTask, KeepsStateBetweenCalls) {
  std::array<int, 3> seen{};
  int calls = 0;
  InlineTask task([&seen, next = 0, &calls]() mutable {
    seen[static_cast<std::size_t>(calls++)] = next;
    next += 10;
  });
  for (int i = 0; i < 3; ++i) task();
  EXPECT_EQ(seen, (std::array<int, 3>{0, 10, 20}));
}

}  // namespace
}  // namespace spillway::inline_task_test
