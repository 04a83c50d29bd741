// Ranks that are threads, and what they have in common with ranks that meet over TCP: failures and
// disagreement must end, not hang.
#include "comm/threads/thread_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <vector>

#include "comm/handshake.hpp"
#include "runtime/base/error.hpp"
#include "tests/comm/sparse_memory.hpp"
#include "tests/comm/tcp_ranks.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::comm::thread_group_test {
namespace {

using testing::HasSubstr;

/// Returns the message with which `call` fails, and expects `code`.
std::string failure_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

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

TEST(ThreadGroup, RunsAgainBehindTheMessagesOfTheRunBefore) {
  ThreadGroup group(3, {.communicator = {.timeout_ms = 5000}});
  for (const std::byte sent : {std::byte{1}, std::byte{2}}) {
    group.run([sent](Communicator& self) {
      std::vector<std::byte> data(4, self.rank() == Rank{2} ? sent : std::byte{0});
      self.broadcast(data, Rank{2}).wait();
      EXPECT_THAT(data, testing::Each(sent));
    });
  }
}

TEST(ThreadGroup, ARankThatAbandonsTheGroupEndsWhatItHasStarted) {
  ThreadGroup group(2);
  EXPECT_THROW(group.run([](Communicator& self) {
    if (self.rank() == Rank{1}) return;
    std::vector<std::byte> data(4);
    Ticket ticket = self.receive(data, Rank{1});  // never sent
    Ticket queued = self.barrier();
    self.abandon("the disk is full");
    EXPECT_THAT(failure_of([&] { ticket.wait(); }, ErrorCode::device_error),
                HasSubstr("this rank has abandoned the group: the disk is full"));
    queued.wait();
  }),
               Error);
}

// Rank 1 starts nothing before rank 0 has started everything.
TEST(ThreadGroup, StartingWaitsForNobody) {
  std::promise<void> started;
  ThreadGroup(2).run([&](Communicator& self) {
    std::vector<std::byte> data(1 << 20);
    if (self.rank() == Rank{1}) started.get_future().wait();
    Ticket first = self.all_reduce(data, DType::fp32);
    Ticket second = self.barrier();
    if (self.rank() == Rank{0}) {
      EXPECT_FALSE(first.ready());
      started.set_value();
    }
    second.wait();
    EXPECT_TRUE(first.ready());
  });
}

std::string disagreement_of(const std::function<void(Communicator&)>& body) {
  const ThreadGroupOptions options{.communicator = {.timeout_ms = 5000}};
  return failure_of([&] { ThreadGroup(2, options).run(body); }, ErrorCode::invalid_argument);
}

TEST(ThreadGroup, NoticesDifferentCollectives) {
  EXPECT_THAT(disagreement_of([](Communicator& self) {
                std::vector<std::byte> data(8);
                if (self.rank() == Rank{0}) self.barrier().wait();
                if (self.rank() == Rank{1}) self.broadcast(data, Rank{0}).wait();
              }),
              AllOf(HasSubstr("rank 0 of 2 called barrier of 0 bytes"),
                    HasSubstr("rank 1 of 2 called broadcast of 8 bytes")));
}

TEST(ThreadGroup, NoticesATransferWhereOthersCallACollective) {
  EXPECT_THAT(disagreement_of([](Communicator& self) {
                std::vector<std::byte> data(8);
                if (self.rank() == Rank{0}) self.send(data, Rank{1}).wait();
                if (self.rank() == Rank{1}) self.all_reduce(data, DType::fp32).wait();
              }),
              HasSubstr("rank 0 of 2 called send of 8 bytes"));
}

TEST(ThreadGroup, NoticesDifferentSizesRootsAndTypes) {
  disagreement_of([](Communicator& self) {
    std::vector<std::byte> data(8 + 8 * self.rank().value());
    self.broadcast(data, Rank{0}).wait();
  });
  disagreement_of([](Communicator& self) {
    std::vector<std::byte> data(8);
    self.broadcast(data, self.rank()).wait();
  });
  disagreement_of([](Communicator& self) {
    std::vector<std::byte> data(8);
    std::vector<std::byte> shard(4);
    const DType dtype = self.rank() == Rank{0} ? DType::bf16 : DType::fp16;
    self.reduce_scatter(data, shard, {dtype, dtype}).wait();
  });
}

TEST(ThreadGroup, NoticesAMessageOfAnotherSize) {
  disagreement_of([](Communicator& self) {
    std::vector<std::byte> data(8 + self.rank().value());
    if (self.rank() == Rank{0}) self.send(data, Rank{1}).wait();
    if (self.rank() == Rank{1}) self.receive(data, Rank{0}).wait();
  });
}

// What a rank would say of itself, as it lies in memory.
struct Card {
  char version[32] = "1.0";
  std::uint64_t settings_bytes = 0;
  std::uint32_t ranks = 3;
  std::uint32_t unused = 0;
};

TEST(ThreadGroup, TheHandshakeBelievesNoNumberOfACard) {
  const auto with = [](Card card) {
    return failure_of(
        [card] {
          ThreadGroup(3).run([card](Communicator& self) {
            if (self.rank() != Rank{1}) return handshake(self, {"1.0", 3, ""});
            std::vector<Card> cards(3);
            self.all_gather(std::as_bytes(std::span{&card, 1}),
                            std::as_writable_bytes(std::span{cards}))
                .wait();
          });
        },
        ErrorCode::invalid_argument);
  };
  EXPECT_THAT(with({.settings_bytes = std::uint64_t{1} << 60}),
              HasSubstr("rank 1 has 1152921504606846976 bytes of settings"));
  Card endless;
  std::ranges::fill(endless.version, 'x');
  EXPECT_THAT(with(endless),
              HasSubstr("the version of rank 1 is " + std::string(32, 'x') + ", of rank 0 1.0"));
}

TEST(ThreadGroup, TheHandshakeNamesTheRankThatDiffers) {
  const auto with = [](const std::function<Identity(Rank)>& identity) {
    return failure_of(
        [&] {
          ThreadGroup(3).run([&](Communicator& self) { handshake(self, identity(self.rank())); });
        },
        ErrorCode::invalid_argument);
  };
  ThreadGroup(3).run([](Communicator& self) { handshake(self, {"1.0", 3, "a: 1\nb: 2"}); });
  EXPECT_THAT(with([](Rank rank) {
                return Identity{rank == Rank{1} ? "1.1" : "1.0", 3, ""};
              }),
              HasSubstr("the version of rank 1 is 1.1, of rank 0 1.0"));
  EXPECT_THAT(with([](Rank rank) {
                return Identity{"1.0", 3, rank == Rank{2} ? "a: 1\nb: 3" : "a: 1\nb: 2"};
              }),
              HasSubstr("rank 2 has b: 3, rank 0 has b: 2"));
  EXPECT_THAT(with([](Rank rank) {
                return Identity{"1.0", 3, rank == Rank{1} ? "a: 1" : "a: 1\nb: 2"};
              }),
              HasSubstr("rank 1 has nothing, rank 0 has b: 2"));
  EXPECT_THAT(with([](Rank rank) {
                return Identity{"1.0", rank == Rank{0} ? 4U : 3U, ""};
              }),
              HasSubstr("the number of ranks of rank 1 is 3, of rank 0 4"));
  EXPECT_THAT(with([](Rank) {
                return Identity{"1.0", 4, ""};
              }),
              HasSubstr("the group has 3 ranks and was launched with 4"));
}

// Each rank sends and receives 3 parts of 1 MB in an all-gather, and twice that in an all-reduce.
TEST(ThreadGroup, LinksHaveTheBandwidthThatIsAskedFor) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kPart = 1'000'000;
  constexpr double kGigabytesPerSecond = 0.1;
  ThreadGroup group(
      4, {.communicator = {.piece = 1_MiB}, .link_gigabytes_per_second = kGigabytesPerSecond});
  group.run([](Communicator& self) {
    std::vector<std::byte> all(4 * kPart);
    const auto seconds_of = [&](Ticket ticket, Clock::time_point start) {
      ticket.wait();
      self.barrier().wait();
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    self.barrier().wait();
    Clock::time_point start = Clock::now();
    double seconds = seconds_of(self.all_gather(std::span{all}.first(kPart), all), start);
    // A link may catch up on 0.2 ms; the machine may be as slow as it likes.
    EXPECT_GT(seconds, 3e-9 * kPart / kGigabytesPerSecond - 0.001);
    start = Clock::now();
    seconds = seconds_of(self.all_reduce(all, DType::fp32), start);
    EXPECT_GT(seconds, 6e-9 * kPart / kGigabytesPerSecond - 0.001);
  });
}

TEST(ThreadGroup, RefusesLinksAndGroupsThatAreNotPossible) {
  failure_of([] { ThreadGroup(0); }, ErrorCode::invalid_argument);
  failure_of([] { ThreadGroup(2, {.link_gigabytes_per_second = 0.0}); },
             ErrorCode::invalid_argument);
}

using Body = std::function<void(Communicator&)>;

struct Transport {
  const char* name;
  void (*run)(std::uint32_t ranks, const CommunicatorOptions& options, const Body& body);
};

void PrintTo(const Transport& transport, std::ostream* out) { *out << transport.name; }

void run_threads(std::uint32_t ranks, const CommunicatorOptions& options, const Body& body) {
  ThreadGroup(ranks, {.communicator = options}).run(body);
}

class Transports : public testing::TestWithParam<Transport> {
 protected:
  static void run(std::uint32_t ranks, const CommunicatorOptions& options, const Body& body) {
    GetParam().run(ranks, options, body);
  }
};

INSTANTIATE_TEST_SUITE_P(Of, Transports,
                         testing::Values(Transport{"threads", run_threads},
                                         Transport{"tcp", run_tcp_ranks}),
                         [](const auto& transport) { return transport.param.name; });

// A rank that is told may go before the third has heard of it, and must not seem to have died.
TEST_P(Transports, TellEveryRankWhichOneHasFailedAndWhy) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(
        run(4, {.timeout_ms = 20'000},
            [](Communicator& self) {
              self.barrier().wait();
              if (self.rank() == Rank{2}) throw std::runtime_error("no paper");
              EXPECT_THAT(failure_of([&] { self.barrier().wait(); }, ErrorCode::device_error),
                          HasSubstr("rank 2 has abandoned the group: no paper"));
              // It is over for good.
              EXPECT_THAT(failure_of([&] { self.barrier().wait(); }, ErrorCode::device_error),
                          HasSubstr("no paper"));
            }),
        std::runtime_error);
  }
}

TEST_P(Transports, NameARankThatDoesNotAnswer) {
  const auto start = std::chrono::steady_clock::now();
  std::promise<void> over;
  std::shared_future<void> is_over = over.get_future().share();
  const auto hang = [&] {
    run(3, {.timeout_ms = 1000}, [&](Communicator& self) {
      std::vector<std::byte> data(400);
      self.all_reduce(data, DType::fp32).wait();
      if (self.rank() == Rank{2}) return is_over.wait();  // it hangs
      try {
        self.all_reduce(data, DType::fp32).wait();
      } catch (...) {
        if (self.rank() == Rank{0}) over.set_value();
        throw;
      }
    });
  };
  EXPECT_THAT(failure_of(hang, ErrorCode::device_error),
              HasSubstr("waited 1 s for rank 2 in all_reduce (collective 2)"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

// Rank 0 waits for rank 1, which waits for rank 2.
TEST_P(Transports, WaitForARankThatSaysThatItIsAtWork) {
  run(3, {.timeout_ms = 400}, [](Communicator& self) {
    std::vector<std::byte> data(400);
    self.all_reduce(data, DType::fp32).wait();
    if (self.rank() == Rank{2}) {
      const AtWork whole(&self);
      { const AtWork part(&self); }
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    }
    self.all_reduce(data, DType::fp32).wait();
  });
}

TEST_P(Transports, WaitNoLongerForARankThatHasEndedItsWork) {
  EXPECT_THAT(failure_of(
                  [] {
                    run(2, {.timeout_ms = 400}, [](Communicator& self) {
                      if (self.rank() == Rank{1}) {
                        {
                          const AtWork work(&self);
                        }
                        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                      }
                      self.barrier().wait();
                    });
                  },
                  ErrorCode::device_error),
              HasSubstr("waited 0.4 s for rank 1 in barrier"));
}

TEST_P(Transports, AllocateNothingInTheSteadyState) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  run(3, {.timeout_ms = 60'000, .piece = 2_KiB}, [](Communicator& self) {
    std::vector<std::byte> all(30'000);
    std::vector<std::byte> shard(10'000);
    self.barrier().wait();
    std::optional<test_support::AllocationCounter> counter;
    if (self.rank() == Rank{0}) counter.emplace();
    self.barrier().wait();
    self.all_gather(shard, all).wait();
    self.reduce_scatter(all, shard, {}).wait();
    self.all_reduce(all, DType::bf16).wait();
    self.broadcast(all, Rank{1}).wait();
    self.barrier().wait();
    if (counter.has_value()) {
      EXPECT_EQ(counter->allocations(), 0);
    }
    counter.reset();
    self.barrier().wait();
  });
}

TEST_P(Transports, MoveMoreBytesThanAnIntHolds) {
  constexpr std::size_t kSize = (std::size_t{1} << 31) + 5;
  constexpr std::size_t kMarks[] = {0, (std::size_t{1} << 31) - 1, std::size_t{1} << 31, kSize - 1};
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer shadows all of it";
  run(2, {.timeout_ms = 60'000, .piece = 64_MiB}, [&](Communicator& self) {
    const SparseMemory memory(kSize);
    const std::span<std::byte> data = memory.span();
    unsigned char mark = 1;
    if (self.rank() == Rank{0}) {
      for (const std::size_t i : kMarks) data[i] = std::byte{mark++};
      return self.send(data, Rank{1}).wait();
    }
    self.receive(data, Rank{0}).wait();
    for (const std::size_t i : kMarks) EXPECT_EQ(data[i], std::byte{mark++}) << i;
  });
}

TEST(MakeCommunicator, NamesWhatItCannotMake) {
  const auto make = [](std::string_view backend) {
    return [=] { static_cast<void>(make_communicator(backend)); };
  };
  EXPECT_THAT(failure_of(make("nccl"), ErrorCode::invalid_argument),
              HasSubstr("DeviceCommunicator"));
  EXPECT_THAT(failure_of(make("threads"), ErrorCode::invalid_argument), HasSubstr("ThreadGroup"));
  EXPECT_THAT(failure_of(make("pigeon"), ErrorCode::invalid_argument), HasSubstr("pigeon"));
}

}  // namespace
}  // namespace spillway::comm::thread_group_test
