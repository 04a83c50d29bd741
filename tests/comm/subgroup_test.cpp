// What the contract of Communicator does not say of one group alone: subgroups beside each other
// and beside the group they are of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/threads/thread_group.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm::subgroup_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<Rank> ranks_of(const std::vector<std::uint32_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

/// Returns the sum of `mine` over the ranks of a group.
float sum_over(Communicator& group, float mine) {
  group.all_reduce(std::as_writable_bytes(std::span{&mine, 1}), DType::fp32).wait();
  return mine;
}

/// Returns the message of the error, of this code, that ends a group of ranks that run `body`.
std::string failure_of(std::uint32_t ranks, ErrorCode code,
                       const std::function<void(Communicator&)>& body) {
  try {
    ThreadGroup(ranks, {.communicator = {.timeout_ms = 5000}}).run(body);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// Six ranks as a grid of two rows and three columns: every rank is in one of each.
TEST(Subgroup, RowsColumnsAndAllTakeTurns) {
  ThreadGroup(6).run([](Communicator& self) {
    const std::uint32_t row = self.rank().value() / 3;
    const std::uint32_t column = self.rank().value() % 3;
    const auto in_row = self.subgroup(ranks_of({3 * row, 3 * row + 1, 3 * row + 2}));
    const auto in_column = self.subgroup(ranks_of({column, column + 3}));
    EXPECT_EQ(in_row->rank(), Rank{column});
    EXPECT_EQ(in_column->rank(), Rank{row});
    const auto mine = static_cast<float>(1 << self.rank().value());
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(sum_over(*in_row, mine), row == 0 ? 7 : 56);
      EXPECT_EQ(sum_over(*in_column, mine), static_cast<float>(9 << column));
      EXPECT_EQ(sum_over(self, mine), 63);
    }
  });
}

// Rank 3 is rank 0 of the first subgroup, and rank 1 of the second.
TEST(Subgroup, ASubgroupHasSubgroups) {
  ThreadGroup(4).run([](Communicator& self) {
    if (self.rank() == Rank{1}) return;
    const auto three = self.subgroup(ranks_of({3, 2, 0}));
    if (three->rank() == Rank{1}) return;
    const auto two = three->subgroup(ranks_of({2, 0}));
    EXPECT_EQ(two->rank(), Rank{self.rank() == Rank{3} ? 1U : 0U});
    EXPECT_EQ(sum_over(*two, static_cast<float>(self.rank().value() + 1)), 5);
  });
}

TEST(Subgroup, OutlivesTheGroupItIsOf) {
  ThreadGroup(2).run([](Communicator& self) {
    std::unique_ptr<Communicator> pair;
    {
      const auto whole = self.subgroup(ranks_of({0, 1}));
      pair = whole->subgroup(ranks_of({1, 0}));
    }
    EXPECT_EQ(sum_over(*pair, 2), 4);
  });
}

TEST(Subgroup, CountsWhatItSends) {
  ThreadGroup(3).run([](Communicator& self) {
    if (self.rank() == Rank{0}) return;
    const auto pair = self.subgroup(ranks_of({1, 2}));
    std::vector<std::byte> all(128);
    pair->all_gather(std::span{all}.first(64), all).wait();
    EXPECT_EQ(pair->sent(), 64_B);
    EXPECT_EQ(self.sent(), 0_B);
  });
}

TEST(Subgroup, RefusesAListThatIsNone) {
  ThreadGroup(3).run([](Communicator& self) {
    const auto refusal = [&](const std::vector<std::uint32_t>& numbers) -> std::string {
      try {
        (void)self.subgroup(ranks_of(numbers));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        return error.what();
      }
      return "";
    };
    EXPECT_THAT(refusal({0, 1, 2, 3}), HasSubstr("a group of 3 ranks has no rank 3"));
    EXPECT_THAT(refusal({0, 1, 2, 1}), HasSubstr("rank 1 is in the list of a subgroup twice"));
    EXPECT_THAT(refusal({(self.rank().value() + 1) % 3}), HasSubstr("is not in the list"));
    EXPECT_EQ(sum_over(self, 1), 3);  // nothing has happened
  });
}

TEST(Subgroup, NoticesMembersInAnotherOrder) {
  EXPECT_THAT(
      failure_of(3, ErrorCode::invalid_argument,
                 [](Communicator& self) {
                   if (self.rank() == Rank{1}) return;
                   const bool first = self.rank() == Rank{0};
                   const auto pair = self.subgroup(first ? ranks_of({0, 2}) : ranks_of({2, 0}));
                   pair->barrier().wait();
                 }),
      AllOf(HasSubstr("rank 0 of 2 (the ranks of subgroup"),
            HasSubstr("rank 2 of 2 (the ranks of subgroup")));
}

TEST(Subgroup, NoticesARankThatMeansAllRanks) {
  EXPECT_THAT(failure_of(2, ErrorCode::invalid_argument,
                         [](Communicator& self) {
                           const auto pair = self.subgroup(ranks_of({0, 1}));
                           (self.rank() == Rank{0} ? self : *pair).barrier().wait();
                         }),
              HasSubstr("the ranks disagree"));
}

TEST(Subgroup, NoticesATransferOfAllRanks) {
  EXPECT_THAT(failure_of(2, ErrorCode::invalid_argument,
                         [](Communicator& self) {
                           const auto pair = self.subgroup(ranks_of({0, 1}));
                           std::vector<std::byte> data(8);
                           if (self.rank() == Rank{0}) self.send(data, Rank{1}).wait();
                           if (self.rank() == Rank{1}) pair->receive(data, Rank{0}).wait();
                         }),
              HasSubstr("the ranks disagree"));
}

// Rank 1 waits for rank 3, and rank 0 for rank 1, in a group of which rank 3 is none.
TEST(Subgroup, ARankThatFailsEndsEveryGroup) {
  EXPECT_THAT(failure_of(4, ErrorCode::device_error,
                         [](Communicator& self) {
                           std::vector<std::byte> data(4);
                           if (self.rank() == Rank{1}) self.receive(data, Rank{3}).wait();
                           if (self.rank() == Rank{3}) {
                             throw Error(ErrorCode::device_error, "the disk is full");
                           }
                           if (self.rank() == Rank{2}) return;
                           const auto pair = self.subgroup(ranks_of({0, 1}));
                           try {
                             pair->receive(data, Rank{1}).wait();
                           } catch (const Error& error) {
                             EXPECT_THAT(error.what(), HasSubstr("the disk is full"));
                             throw;
                           }
                         }),
              HasSubstr("the disk is full"));
}

TEST(Subgroup, NamesALateRankByItsNumberInTheJob) {
  const ThreadGroupOptions options{.communicator = {.timeout_ms = 100}};
  std::string message;
  try {
    ThreadGroup(4, options).run([](Communicator& self) {
      if (self.rank().value() < 2) return;
      const auto pair = self.subgroup(ranks_of({3, 2}));
      if (self.rank() == Rank{2}) pair->barrier().wait();
    });
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("rank 2 waited 0.1 s for rank 3 in barrier"));
}

TEST(Subgroup, IsNotMadeAfterAFailure) {
  EXPECT_THAT(failure_of(2, ErrorCode::device_error,
                         [](Communicator& self) {
                           self.abandon("the disk is full");
                           (void)self.subgroup(ranks_of({0, 1}));
                         }),
              HasSubstr("the disk is full"));
}

}  // namespace
}  // namespace spillway::comm::subgroup_test
