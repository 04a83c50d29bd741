// What is particular to ranks that are threads: failures and disagreement must end, not hang.
#include "comm/threads/thread_group.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

TEST(ThreadGroup, FreesRanksThatWaitForOneThatFailed) {
  ThreadGroup group(3);
  try {
    group.run([](Communicator& self) {
      if (self.rank() == Rank{1}) throw std::runtime_error("rank 1 is out of paper");
      if (self.rank() == Rank{2}) {
        std::vector<std::byte> data(4);
        self.receive(data, Rank{1}).wait();
      }
      self.barrier().wait();
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1 is out of paper");
  }
}

TEST(ThreadGroup, FreesASenderWhoseReceiverFailed) {
  ThreadGroup group(2);
  EXPECT_THROW(group.run([](Communicator& self) {
    std::vector<std::byte> data(4);
    if (self.rank() == Rank{0}) self.send(data, Rank{1}).wait();
    if (self.rank() == Rank{1}) throw std::runtime_error("gone");
  }),
               std::runtime_error);
}

TEST(ThreadGroup, StaysBroken) {
  ThreadGroup group(2);
  const auto fail = [](Communicator&) { throw std::runtime_error("first"); };
  EXPECT_THROW(group.run(fail), std::runtime_error);
  EXPECT_THROW(group.run([](Communicator& self) { self.barrier().wait(); }), std::runtime_error);
}

void expect_disagreement(const std::function<void(Communicator&)>& body) {
  ThreadGroup group(2);
  try {
    group.run(body);
    FAIL() << "the ranks disagreed and nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  }
}

TEST(ThreadGroup, NoticesDifferentCollectives) {
  expect_disagreement([](Communicator& self) {
    std::vector<std::byte> data(8);
    if (self.rank() == Rank{0}) self.barrier().wait();
    if (self.rank() == Rank{1}) self.broadcast(data, Rank{0}).wait();
  });
}

TEST(ThreadGroup, NoticesDifferentSizesRootsAndTypes) {
  expect_disagreement([](Communicator& self) {
    std::vector<std::byte> data(8 + 8 * self.rank().value());
    self.broadcast(data, Rank{0}).wait();
  });
  expect_disagreement([](Communicator& self) {
    std::vector<std::byte> data(8);
    self.broadcast(data, self.rank()).wait();
  });
  expect_disagreement([](Communicator& self) {
    std::vector<std::byte> data(8);
    std::vector<std::byte> shard(4);
    const DType dtype = self.rank() == Rank{0} ? DType::bf16 : DType::fp16;
    self.reduce_scatter(data, shard, {dtype, dtype}).wait();
  });
}

TEST(ThreadGroup, NoticesAMessageOfAnotherSize) {
  expect_disagreement([](Communicator& self) {
    std::vector<std::byte> data(8 + self.rank().value());
    if (self.rank() == Rank{0}) self.send(data, Rank{1}).wait();
    if (self.rank() == Rank{1}) self.receive(data, Rank{0}).wait();
  });
}

TEST(MakeCommunicator, NamesWhatThisBuildLacks) {
  const auto code_of = [](std::string_view backend) {
    try {
      static_cast<void>(make_communicator(backend));
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of("mpi"), ErrorCode::not_supported);
  EXPECT_EQ(code_of("nccl"), ErrorCode::not_supported);
  EXPECT_EQ(code_of("threads"), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of("pigeon"), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace spillway::comm
