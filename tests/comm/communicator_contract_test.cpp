// The contract of Communicator, over every backend and several numbers of ranks (groups.hpp).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "tests/comm/groups.hpp"
#include "tests/comm/values.hpp"

namespace spillway::comm::communicator_contract_test {
namespace {

/// Elements of a rank: none, one, some, and more than a piece holds where pieces are small.
constexpr std::size_t kCounts[] = {0, 1, 37, 2501};
constexpr SumTypes kTypes[] = {{DType::fp32, DType::fp32},
                               {DType::bf16, DType::bf16},
                               {DType::fp16, DType::fp16},
                               {DType::bf16, DType::fp32},
                               {DType::fp16, DType::fp32}};

class CommunicatorContract : public testing::TestWithParam<Group> {
 protected:
  [[nodiscard]] std::uint32_t ranks() const { return GetParam().ranks; }
  void run(const Body& body) const { GetParam().run(body); }
  /// Runs the body for every count of elements.
  void run_counts(const std::function<void(Communicator&, std::size_t)>& body) const {
    run([&](Communicator& self) {
      for (const std::size_t count : kCounts) {
        SCOPED_TRACE(fmt::format("{} elements of rank {}", count, self.rank().value()));
        body(self, count);
      }
    });
  }
};

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span{values});
}

TEST_P(CommunicatorContract, GivesEveryRankItsOwnNumber) {
  run([&](Communicator& self) {
    EXPECT_EQ(self.ranks(), ranks());
    std::vector<std::uint32_t> mine{self.rank().value()};
    std::vector<std::uint32_t> seen(ranks());
    self.all_gather(bytes_of(mine), bytes_of(seen)).wait();
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) EXPECT_EQ(seen[rank], rank);
  });
}

TEST_P(CommunicatorContract, AllGatherPutsShardsInRankOrder) {
  run_counts([&](Communicator& self, std::size_t count) {
    const Buffer shard = data_of(self.rank().value(), count);
    Buffer all(shard.size() * ranks());
    self.all_gather(shard, all).wait();
    EXPECT_EQ(all, concatenated(ranks(), count));
  });
}

TEST_P(CommunicatorContract, AllGatherWorksInPlace) {
  run_counts([&](Communicator& self, std::size_t count) {
    const Buffer shard = data_of(self.rank().value(), count);
    Buffer all(shard.size() * ranks());
    const auto part = part_of(all, self.rank().value(), ranks());
    std::ranges::copy(shard, part.begin());
    self.all_gather(part, all).wait();
    EXPECT_EQ(all, concatenated(ranks(), count));
  });
}

TEST_P(CommunicatorContract, ReduceScatterAddsInRankOrderAndRoundsOnce) {
  for (const SumTypes types : kTypes) {
    run_counts([&](Communicator& self, std::size_t count) {
      const Buffer all = data_of(self.rank().value(), count * ranks(), types.addend);
      Buffer sum = sum_of(ranks(), count * ranks(), types);
      Buffer shard(count * size_of(types.result));
      self.reduce_scatter(all, shard, types).wait();
      EXPECT_TRUE(std::ranges::equal(shard, part_of(sum, self.rank().value(), ranks())))
          << name_of(types.addend) << " to " << name_of(types.result);
      EXPECT_EQ(all, data_of(self.rank().value(), count * ranks(), types.addend));
    });
  }
}

TEST_P(CommunicatorContract, ReduceScatterWorksInPlace) {
  run_counts([&](Communicator& self, std::size_t count) {
    Buffer all = data_of(self.rank().value(), count * ranks(), DType::bf16);
    Buffer sum = sum_of(ranks(), count * ranks(), {DType::bf16, DType::bf16});
    const auto part = part_of(all, self.rank().value(), ranks());
    self.reduce_scatter(all, part, {DType::bf16, DType::bf16}).wait();
    EXPECT_TRUE(std::ranges::equal(part, part_of(sum, self.rank().value(), ranks())));
  });
}

// Counts around a multiple of the ranks: parts are not equally large then.
TEST_P(CommunicatorContract, AllReduceGivesEveryRankTheSameBitsForEveryCount) {
  run([&](Communicator& self) {
    for (std::size_t count = 0; count <= std::size_t{3} * ranks() + 1; ++count) {
      Buffer data = data_of(self.rank().value(), count);
      self.all_reduce(data, DType::fp32).wait();
      EXPECT_EQ(data, sum_of(ranks(), count, {})) << count << " elements";
    }
  });
}

TEST_P(CommunicatorContract, AllReduceAndReduceSumEveryType) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    run_counts([&](Communicator& self, std::size_t count) {
      const Buffer sum = sum_of(ranks(), count, {dtype, dtype});
      Buffer data = data_of(self.rank().value(), count, dtype);
      self.all_reduce(data, dtype).wait();
      EXPECT_EQ(data, sum) << name_of(dtype);
      for (std::uint32_t root = 0; root < ranks(); ++root) {
        data = data_of(self.rank().value(), count, dtype);
        self.reduce(data, dtype, Rank{root}).wait();
        EXPECT_TRUE(self.rank() != Rank{root} || data == sum) << name_of(dtype);
      }
    });
  }
}

TEST_P(CommunicatorContract, BroadcastCopiesTheRoot) {
  run_counts([&](Communicator& self, std::size_t count) {
    for (std::uint32_t root = 0; root < ranks(); ++root) {
      Buffer data = data_of(self.rank().value(), count);
      self.broadcast(data, Rank{root}).wait();
      EXPECT_EQ(data, data_of(root, count));
    }
  });
}

TEST_P(CommunicatorContract, ScatterUndoesGather) {
  run_counts([&](Communicator& self, std::size_t count) {
    for (std::uint32_t root = 0; root < ranks(); ++root) {
      const bool at_root = self.rank() == Rank{root};
      const Buffer shard = data_of(self.rank().value(), count);
      Buffer all(at_root ? shard.size() * ranks() : 0);
      self.gather(shard, all, Rank{root}).wait();
      EXPECT_TRUE(!at_root || all == concatenated(ranks(), count));
      Buffer back(shard.size());
      self.scatter(all, back, Rank{root}).wait();
      EXPECT_EQ(back, shard);
    }
  });
}

TEST_P(CommunicatorContract, AllToAllTransposes) {
  run_counts([&](Communicator& self, std::size_t count) {
    const std::uint32_t mine = self.rank().value();
    Buffer source;
    for (std::uint32_t to = 0; to < ranks(); ++to) {
      const Buffer part = data_of(ranks() * mine + to, count);
      source.insert(source.end(), part.begin(), part.end());
    }
    Buffer target(source.size());
    self.all_to_all(source, target).wait();
    for (std::uint32_t from = 0; from < ranks(); ++from) {
      EXPECT_TRUE(std::ranges::equal(part_of(target, from, ranks()),
                                     data_of(ranks() * from + mine, count)));
    }
  });
}

TEST_P(CommunicatorContract, MessagesOfAPairArriveInOrder) {
  if (ranks() < 2) return;  // a group of one has nobody to send to
  run([&](Communicator& self) {
    for (const std::size_t count : kCounts) {
      for (std::uint32_t i = 0; i < 5; ++i) {
        Buffer message = data_of(i, count);
        if (self.rank() == Rank{0}) self.send(message, Rank{1}).wait();
        if (self.rank() != Rank{1}) continue;
        std::ranges::fill(message, std::byte{0});
        self.receive(message, Rank{0}).wait();
        EXPECT_EQ(message, data_of(i, count));
      }
    }
  });
}

// Rank 1 stands first in the list, and sends once the last rank's message has come.
TEST_P(CommunicatorContract, ReceivesFromWhoeverSendsFirst) {
  if (ranks() < 3) return;  // there are no two that may send
  const std::vector<Rank> some{Rank{1}, Rank{ranks() - 1}};
  run_counts([&](Communicator& self, std::size_t count) {
    const Buffer mine = data_of(self.rank().value(), count);
    Buffer message(mine.size());
    if (self.rank() == some[0]) self.receive(message, Rank{0}).wait();
    if (std::ranges::find(some, self.rank()) != some.end()) self.send(mine, Rank{0}).wait();
    if (self.rank() == Rank{0}) {
      Rank sender{0};
      self.receive(message, some, sender).wait();
      EXPECT_EQ(sender, some[1]);
      EXPECT_EQ(message, data_of(some[1].value(), count));
      self.send(message, some[0]).wait();
      self.receive(message, std::span{some}.first(1), sender).wait();
      EXPECT_EQ(sender, some[0]);
      EXPECT_EQ(message, data_of(some[0].value(), count));
    }
    self.barrier().wait();
  });
}

TEST_P(CommunicatorContract, ExchangesGoRoundARing) {
  if (ranks() < 2) return;  // a group of one has nobody to send to
  run_counts([&](Communicator& self, std::size_t count) {
    const std::uint32_t before = (self.rank().value() + ranks() - 1) % ranks();
    const Buffer source = data_of(self.rank().value(), count + self.rank().value());
    Buffer target((count + before) * sizeof(float));
    self.exchange(source, Rank{(self.rank().value() + 1) % ranks()}, target, Rank{before}).wait();
    EXPECT_EQ(target, data_of(before, count + before));
  });
}

TEST_P(CommunicatorContract, NobodyLeavesABarrierBeforeTheLastArrives) {
  using Clock = std::chrono::steady_clock;  // of the machine, not of the process
  run([&](Communicator& self) {
    for (int round = 0; round < 20; ++round) {
      std::vector<Clock::rep> times{Clock::now().time_since_epoch().count(), 0};
      self.barrier().wait();
      times[1] = Clock::now().time_since_epoch().count();
      std::vector<Clock::rep> all(2 * ranks());
      self.all_gather(bytes_of(times), bytes_of(all)).wait();
      for (std::uint32_t rank = 0; rank < ranks(); ++rank) EXPECT_LE(all[2 * rank], times[1]);
    }
  });
}

TEST_P(CommunicatorContract, ManyOperationsAreUnderWayAtOnceAndRunInOrder) {
  run([&](Communicator& self) {
    constexpr std::size_t kMany = 100;  // more than the queue holds
    std::vector<Buffer> data(kMany);
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < kMany; ++i) {
      data[i] = data_of(self.rank().value(), i);
      tickets.push_back(self.all_reduce(data[i], DType::fp32));
    }
    tickets.back().wait();
    for (std::size_t i = 0; i < kMany; ++i) {
      EXPECT_TRUE(tickets[i].ready());
      tickets[i].wait();
      EXPECT_EQ(data[i], sum_of(ranks(), i, {}));
    }
  });
}

TEST_P(CommunicatorContract, AnOperationThatEndsWakesTheControlThread) {
  run([&](Communicator& self) {
    WakeSignal wake;
    self.wake_with(&wake);
    const auto start = std::chrono::steady_clock::now();
    Ticket ticket = self.barrier();
    while (!ticket.ready()) wake.wait_for(std::chrono::seconds(10));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
    ticket.wait();
    self.wake_with(nullptr);
  });
}

// An all-reduce of P elements sends 2 P (N - 1) / N a rank, its halves half.
TEST_P(CommunicatorContract, CountsSentBytesAsARingWould) {
  constexpr std::uint64_t kShard = 64;
  const std::uint64_t others = ranks() - 1;
  run([&](Communicator& self) {
    const auto expect_sent = [&](Operation operation, Ticket ticket, std::uint64_t bytes,
                                 Bytes before) {
      ticket.wait();
      EXPECT_EQ(self.sent(operation) - before, Bytes{bytes}) << name_of(operation);
    };
    const auto sent = [&](Operation operation) { return self.sent(operation); };
    const Bytes total = self.sent();
    Buffer all(4 * kShard * ranks());
    Buffer shard(4 * kShard);
    Bytes before = sent(Operation::all_reduce);
    expect_sent(Operation::all_reduce, self.all_reduce(all, DType::fp32), 8 * kShard * others,
                before);
    before = sent(Operation::reduce_scatter);
    expect_sent(Operation::reduce_scatter, self.reduce_scatter(all, shard, {}), 4 * kShard * others,
                before);
    before = sent(Operation::all_gather);
    expect_sent(Operation::all_gather, self.all_gather(shard, all), 4 * kShard * others, before);
    before = sent(Operation::broadcast);
    const bool last = self.rank() == Rank{ranks() - 1};
    expect_sent(Operation::broadcast, self.broadcast(all, Rank{0}), last ? 0 : all.size(), before);
    before = sent(Operation::reduce);
    const std::uint64_t to_root = self.rank() == Rank{0} ? 0 : shard.size();
    expect_sent(Operation::reduce, self.reduce(all, DType::fp32, Rank{0}),
                4 * kShard * others + to_root, before);
    Buffer other(all.size());
    before = sent(Operation::all_to_all);
    expect_sent(Operation::all_to_all, self.all_to_all(all, other), 4 * kShard * others, before);
    before = sent(Operation::barrier);
    expect_sent(Operation::barrier, self.barrier(), 0, before);
    EXPECT_EQ(self.sent() - total, Bytes{24 * kShard * others + to_root + (last ? 0 : all.size())});
  });
}

TEST_P(CommunicatorContract, RefusesBuffersThatDoNotFit) {
  const auto expect_refused = [](const std::function<Ticket()>& call) {
    try {
      call().wait();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    }
  };
  run([&](Communicator& self) {
    Buffer small(8);
    Buffer wrong(8 * ranks() + 4);
    expect_refused([&] { return self.all_gather(small, wrong); });
    expect_refused([&] { return self.reduce_scatter(wrong, small, {}); });
    expect_refused([&] { return self.reduce_scatter(wrong, small, {DType::fp32, DType::bf16}); });
    expect_refused([&] { return self.all_to_all(small, wrong); });
    expect_refused([&] { return self.all_reduce(std::span{small}.first(7), DType::bf16); });
    expect_refused([&] { return self.reduce(std::span{small}.first(6), DType::fp32, Rank{0}); });
    expect_refused([&] { return self.broadcast(small, Rank{ranks()}); });
    expect_refused([&] { return self.gather(small, wrong, self.rank()); });
    expect_refused([&] { return self.scatter(wrong, small, self.rank()); });
    expect_refused([&] { return self.send(small, self.rank()); });
    expect_refused([&] { return self.receive(small, Rank{ranks()}); });
    Rank sender{0};
    expect_refused([&] { return self.receive(small, std::span<const Rank>{}, sender); });
    const std::vector<Rank> with_self{Rank{(self.rank().value() + 1) % ranks()}, self.rank()};
    expect_refused([&] { return self.receive(small, with_self, sender); });
    expect_refused([&] { return self.exchange(small, self.rank(), small, self.rank()); });
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorContract, testing::ValuesIn(groups()),
                         name_of_group);

}  // namespace
}  // namespace spillway::comm::communicator_contract_test
