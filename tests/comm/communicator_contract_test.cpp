// The contract of Communicator, over every backend and several numbers of ranks. A backend joins by
// a line in `groups()`.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <mutex>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/threads/thread_group.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

using Body = std::function<void(Communicator&)>;

/// A backend with a number of ranks: runs a body once per rank.
struct Group {
  std::string backend;
  std::uint32_t ranks;

  void run(const Body& body) const {
    if (backend == "threads") return ThreadGroup(ranks).run(body);
    body(*make_communicator(backend));
  }
};

void PrintTo(const Group& group, std::ostream* stream) {
  *stream << group.ranks << " ranks of " << group.backend;
}

std::vector<Group> groups() {
  return {{"single", 1}, {"threads", 1}, {"threads", 2}, {"threads", 3}, {"threads", 5}};
}

std::string name_of_group(const testing::TestParamInfo<Group>& info) {
  return fmt::format("{}_{}", info.param.backend, info.param.ranks);
}

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span{values});
}

/// The values that rank `rank` contributes: different for every rank and position.
std::vector<float> values_of(std::uint32_t rank, std::size_t count) {
  std::mt19937 random(1000 * rank + 7);
  std::uniform_real_distribution<float> values(-1e3F, 1e3F);
  std::vector<float> result(count);
  std::ranges::generate(result, [&] { return values(random); });
  return result;
}

/// The sum that the contract promises: fp32, ranks in order.
std::vector<float> ordered_sum(std::uint32_t ranks, std::size_t count) {
  std::vector<float> sum = values_of(0, count);
  for (std::uint32_t rank = 1; rank < ranks; ++rank) {
    const std::vector<float> values = values_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

/// The values of all ranks, one after the other.
std::vector<float> concatenated(std::uint32_t ranks, std::size_t count) {
  std::vector<float> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = values_of(rank, count);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  return std::ranges::equal(a, b, {}, bits, bits);
}

class CommunicatorContract : public testing::TestWithParam<Group> {
 protected:
  [[nodiscard]] std::uint32_t ranks() const { return GetParam().ranks; }
  void run(const Body& body) const { GetParam().run(body); }
};

TEST_P(CommunicatorContract, GivesEveryRankItsOwnNumber) {
  std::mutex mutex;
  std::vector<std::uint32_t> seen;
  run([&](Communicator& self) {
    EXPECT_EQ(self.ranks(), ranks());
    const std::lock_guard lock(mutex);
    seen.push_back(self.rank().value());
  });
  std::ranges::sort(seen);
  std::vector<std::uint32_t> expected(ranks());
  std::iota(expected.begin(), expected.end(), 0U);
  EXPECT_EQ(seen, expected);
}

TEST_P(CommunicatorContract, AllGatherPutsShardsInRankOrder) {
  constexpr std::size_t kCount = 37;
  run([&](Communicator& self) {
    std::vector<float> shard = values_of(self.rank().value(), kCount);
    std::vector<float> all(kCount * ranks());
    self.all_gather(bytes_of(shard), bytes_of(all)).wait();
    EXPECT_TRUE(same_bits(all, concatenated(ranks(), kCount)));
  });
}

TEST_P(CommunicatorContract, AllGatherWorksInPlace) {
  constexpr std::size_t kCount = 37;
  run([&](Communicator& self) {
    std::vector<float> all(kCount * ranks());
    const std::size_t offset = kCount * self.rank().value();
    std::ranges::copy(values_of(self.rank().value(), kCount),
                      all.begin() + static_cast<std::ptrdiff_t>(offset));
    const auto bytes = bytes_of(all);
    self.all_gather(bytes.subspan(offset * sizeof(float), kCount * sizeof(float)), bytes).wait();
    EXPECT_TRUE(same_bits(all, concatenated(ranks(), kCount)));
  });
}

TEST_P(CommunicatorContract, ReduceScatterAddsInRankOrder) {
  constexpr std::size_t kShard = 41;
  const std::vector<float> sum = ordered_sum(ranks(), kShard * ranks());
  run([&](Communicator& self) {
    std::vector<float> all = values_of(self.rank().value(), kShard * ranks());
    std::vector<float> shard(kShard);
    self.reduce_scatter(bytes_of(all), bytes_of(shard), {}).wait();
    const auto first = sum.begin() + static_cast<std::ptrdiff_t>(kShard * self.rank().value());
    EXPECT_TRUE(same_bits(shard, std::vector<float>(first, first + kShard)));
    EXPECT_TRUE(same_bits(all, values_of(self.rank().value(), kShard * ranks())));
  });
}

// Counts around a multiple of the ranks: the tail that does not divide must be summed as well.
TEST_P(CommunicatorContract, AllReduceGivesEveryRankTheSameBitsForEveryCount) {
  for (std::size_t count = 0; count <= std::size_t{3} * ranks() + 1; ++count) {
    const std::vector<float> sum = ordered_sum(ranks(), count);
    run([&](Communicator& self) {
      std::vector<float> data = values_of(self.rank().value(), count);
      self.all_reduce(bytes_of(data), DType::fp32).wait();
      EXPECT_TRUE(same_bits(data, sum)) << count << " elements";
    });
  }
}

TEST_P(CommunicatorContract, SumsOf16BitsRoundOnce) {
  constexpr std::size_t kCount = 23;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const auto narrow = dtype == DType::bf16 ? to_bf16 : to_fp16;
    const auto widen = dtype == DType::bf16 ? from_bf16 : from_fp16;
    std::vector<float> sum(kCount);
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      const std::vector<float> values = values_of(rank, kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        const float value = widen(narrow(values[i]));
        sum[i] = rank == 0 ? value : sum[i] + value;
      }
    }
    run([&](Communicator& self) {
      std::vector<std::uint16_t> data;
      for (const float value : values_of(self.rank().value(), kCount)) {
        data.push_back(narrow(value));
      }
      self.all_reduce(bytes_of(data), dtype).wait();
      for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(data[i], narrow(sum[i]));
    });
  }
}

TEST_P(CommunicatorContract, ReduceBringsTheSumToTheRoot) {
  const std::size_t count = std::size_t{5} * ranks() + (ranks() - 1);
  const std::vector<float> sum = ordered_sum(ranks(), count);
  for (std::uint32_t root = 0; root < ranks(); ++root) {
    run([&](Communicator& self) {
      std::vector<float> data = values_of(self.rank().value(), count);
      self.reduce(bytes_of(data), DType::fp32, Rank{root}).wait();
      EXPECT_TRUE(self.rank() != Rank{root} || same_bits(data, sum));
    });
  }
}

TEST_P(CommunicatorContract, BroadcastCopiesTheRoot) {
  for (std::uint32_t root = 0; root < ranks(); ++root) {
    run([&](Communicator& self) {
      std::vector<float> data = values_of(self.rank().value(), 19);
      self.broadcast(bytes_of(data), Rank{root}).wait();
      EXPECT_TRUE(same_bits(data, values_of(root, 19)));
    });
  }
}

TEST_P(CommunicatorContract, ScatterUndoesGather) {
  constexpr std::size_t kCount = 11;
  for (std::uint32_t root = 0; root < ranks(); ++root) {
    run([&](Communicator& self) {
      const bool at_root = self.rank() == Rank{root};
      std::vector<float> shard = values_of(self.rank().value(), kCount);
      std::vector<float> all(at_root ? kCount * ranks() : 0);
      self.gather(bytes_of(shard), bytes_of(all), Rank{root}).wait();
      EXPECT_TRUE(!at_root || same_bits(all, concatenated(ranks(), kCount)));
      std::vector<float> back(kCount);
      self.scatter(bytes_of(all), bytes_of(back), Rank{root}).wait();
      EXPECT_TRUE(same_bits(back, shard));
    });
  }
}

TEST_P(CommunicatorContract, AllToAllTransposes) {
  run([&](Communicator& self) {
    std::vector<std::uint32_t> source(ranks());
    for (std::uint32_t to = 0; to < ranks(); ++to) source[to] = 100 * self.rank().value() + to;
    std::vector<std::uint32_t> target(ranks());
    self.all_to_all(bytes_of(source), bytes_of(target)).wait();
    for (std::uint32_t from = 0; from < ranks(); ++from) {
      EXPECT_EQ(target[from], 100 * from + self.rank().value());
    }
  });
}

TEST_P(CommunicatorContract, MessagesOfAPairArriveInOrder) {
  if (ranks() < 2) return;  // a group of one has nobody to send to
  run([&](Communicator& self) {
    for (std::uint32_t i = 0; i < 50; ++i) {
      std::vector<std::uint32_t> message{i};
      if (self.rank() == Rank{0}) self.send(bytes_of(message), Rank{1}).wait();
      if (self.rank() == Rank{1}) {
        message[0] = 0;
        self.receive(bytes_of(message), Rank{0}).wait();
        EXPECT_EQ(message[0], i);
      }
    }
  });
}

TEST_P(CommunicatorContract, NobodyLeavesABarrierBeforeTheLastArrives) {
  std::mutex mutex;
  std::uint32_t arrived = 0;
  run([&](Communicator& self) {
    for (std::uint32_t round = 1; round <= 20; ++round) {
      {
        const std::lock_guard lock(mutex);
        ++arrived;
      }
      self.barrier().wait();
      {
        const std::lock_guard lock(mutex);
        EXPECT_GE(arrived, round * ranks());
      }
      self.barrier().wait();
    }
  });
}

// theory.md's volumes: an all-reduce of P elements sends 2 P (N - 1) / N a rank, its halves half.
TEST_P(CommunicatorContract, CountsSentBytesAsARingWould) {
  constexpr std::uint64_t kShard = 64;
  const std::uint64_t others = ranks() - 1;
  run([&](Communicator& self) {
    std::vector<float> all(kShard * ranks());
    self.all_reduce(bytes_of(all), DType::fp32).wait();
    EXPECT_EQ(self.sent(Operation::all_reduce), Bytes{2 * 4 * kShard * others});
    std::vector<float> shard(kShard);
    self.reduce_scatter(bytes_of(all), bytes_of(shard), {}).wait();
    EXPECT_EQ(self.sent(Operation::reduce_scatter), Bytes{4 * kShard * others});
    self.all_gather(bytes_of(shard), bytes_of(all)).wait();
    EXPECT_EQ(self.sent(Operation::all_gather), Bytes{4 * kShard * others});
    EXPECT_EQ(self.sent(), Bytes{4 * 4 * kShard * others});
    self.broadcast(bytes_of(all), Rank{0}).wait();
    const bool last = self.rank() == Rank{ranks() - 1};
    EXPECT_EQ(self.sent(Operation::broadcast), Bytes{last ? 0 : 4 * kShard * ranks()});
    std::vector<float> other(all.size());
    self.all_to_all(bytes_of(all), bytes_of(other)).wait();
    EXPECT_EQ(self.sent(Operation::all_to_all), Bytes{4 * kShard * others});
    self.barrier().wait();
    EXPECT_EQ(self.sent(Operation::barrier), Bytes{0});
  });
}

TEST_P(CommunicatorContract, RefusesBuffersThatDoNotFit) {
  const auto expect_refused = [](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    }
  };
  run([&](Communicator& self) {
    std::vector<std::byte> small(8);
    std::vector<std::byte> wrong(8 * ranks() + 4);
    expect_refused([&] { self.all_gather(small, wrong).wait(); });
    expect_refused([&] { self.reduce_scatter(wrong, small, {}).wait(); });
    expect_refused([&] { self.all_to_all(small, wrong).wait(); });
    expect_refused([&] { self.all_reduce(std::span{small}.first(7), DType::bf16).wait(); });
    expect_refused([&] { self.broadcast(small, Rank{ranks()}).wait(); });
    expect_refused([&] { self.send(small, self.rank()).wait(); });
    expect_refused([&] { self.receive(small, Rank{ranks()}).wait(); });
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorContract, testing::ValuesIn(groups()),
                         name_of_group);

}  // namespace
}  // namespace spillway::comm
