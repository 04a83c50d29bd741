// The contract of DeviceCommunicator: on a GPU with NCCL, which takes one rank for each, and with
// several ranks on the emulated CUDA.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "offload/cuda/cuda_device.hpp"
#include "runtime/base/error.hpp"
#include "tests/comm/device_ranks.hpp"

namespace spillway::comm::device_communicator_contract_test {
namespace {

/// Elements of a rank.
constexpr std::size_t kCounts[] = {0, 1, 37, 2501};
constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};

/// Whole numbers, whose sums every type holds exactly, so that no order of adding them matters.
std::vector<float> whole_numbers(std::uint32_t rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 31 + rank * 17 + i / 7) % 17) - 8;
  }
  return values;
}

Buffer addend_of(std::uint32_t rank, std::size_t count, DType dtype) {
  return encoded(whole_numbers(rank, count), dtype);
}

Buffer total_of(std::uint32_t ranks, std::size_t count, DType dtype) {
  std::vector<float> sum(count);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = whole_numbers(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return encoded(sum, dtype);
}

DeviceTarget part_of(DeviceTarget all, std::uint32_t rank, std::uint32_t ranks) {
  return {all.address + all.size / ranks * rank, all.size / ranks};
}

class DeviceCommunicatorContract : public testing::TestWithParam<std::uint32_t> {
 protected:
  void SetUp() override {
    const std::string reason = offload::cuda_unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << "this machine has no usable GPU: " << reason;
    const bool emulated = offload::query_cuda_device().name == "Emulated CUDA device";
    if (!emulated && ranks() > 1) GTEST_SKIP() << "NCCL takes one rank for each GPU";
  }
  [[nodiscard]] static std::uint32_t ranks() { return GetParam(); }
  static void run(const std::function<void(DeviceRank&)>& body) { run_ranks(ranks(), body); }
  /// Runs the body for every count of elements.
  static void run_counts(const std::function<void(DeviceRank&, std::size_t)>& body) {
    run([&](DeviceRank& rank) {
      for (const std::size_t count : kCounts) {
        SCOPED_TRACE(fmt::format("{} elements of rank {}", count, rank.rank()));
        body(rank, count);
        rank.self.wait();
        rank.device.clear();
      }
    });
  }
};

TEST_P(DeviceCommunicatorContract, AllGatherPutsShardsInRankOrder) {
  run_counts([](DeviceRank& r, std::size_t count) {
    const Buffer shard = data_of(r.rank(), count);
    const DeviceTarget apart = r.device.room(shard.size() * r.ranks());
    r.self.all_gather(r.device.put(shard), apart, r.stream());
    Buffer own(shard.size() * r.ranks());
    std::ranges::copy(shard, comm::part_of(own, r.rank(), r.ranks()).begin());
    const DeviceTarget in_place = r.device.put(own);
    r.self.all_gather(part_of(in_place, r.rank(), r.ranks()), in_place, r.stream());
    r.self.wait();
    EXPECT_EQ(r.device.get(apart), concatenated(r.ranks(), count));
    EXPECT_EQ(r.device.get(in_place), concatenated(r.ranks(), count));
  });
}

TEST_P(DeviceCommunicatorContract, ReduceScatterAddsEveryType) {
  for (const DType dtype : kTypes) {
    run_counts([&](DeviceRank& r, std::size_t count) {
      const Buffer all = addend_of(r.rank(), count * r.ranks(), dtype);
      Buffer sum = total_of(r.ranks(), count * r.ranks(), dtype);
      const auto mine = comm::part_of(sum, r.rank(), r.ranks());
      const Buffer expected(mine.begin(), mine.end());
      const DeviceTarget source = r.device.put(all);
      const DeviceTarget apart = r.device.room(count * size_of(dtype));
      r.self.reduce_scatter(source, apart, dtype, r.stream());
      const DeviceTarget in_place = r.device.put(all);
      const DeviceTarget part = part_of(in_place, r.rank(), r.ranks());
      r.self.reduce_scatter(in_place, part, dtype, r.stream());
      r.self.wait();
      EXPECT_EQ(r.device.get(apart), expected) << name_of(dtype);
      EXPECT_EQ(r.device.get(source), all) << name_of(dtype);
      EXPECT_EQ(r.device.get(part), expected) << name_of(dtype);
    });
  }
}

TEST_P(DeviceCommunicatorContract, AllReduceAndReduceSumEveryType) {
  for (const DType dtype : kTypes) {
    run_counts([&](DeviceRank& r, std::size_t count) {
      const Buffer sum = total_of(r.ranks(), count, dtype);
      DeviceTarget data = r.device.put(addend_of(r.rank(), count, dtype));
      r.self.all_reduce(data, dtype, r.stream());
      r.self.wait();
      EXPECT_EQ(r.device.get(data), sum) << name_of(dtype);
      for (std::uint32_t root = 0; root < r.ranks(); ++root) {
        data = r.device.put(addend_of(r.rank(), count, dtype));
        r.self.reduce(data, dtype, Rank{root}, r.stream());
        r.self.wait();
        EXPECT_TRUE(r.rank() != root || r.device.get(data) == sum) << name_of(dtype);
      }
    });
  }
}

TEST_P(DeviceCommunicatorContract, BroadcastCopiesTheRoot) {
  run_counts([](DeviceRank& r, std::size_t count) {
    for (std::uint32_t root = 0; root < r.ranks(); ++root) {
      const DeviceTarget data = r.device.put(data_of(r.rank(), count));
      r.self.broadcast(data, Rank{root}, r.stream());
      r.self.wait();
      EXPECT_EQ(r.device.get(data), data_of(root, count));
    }
  });
}

TEST_P(DeviceCommunicatorContract, ScatterUndoesGather) {
  run_counts([](DeviceRank& r, std::size_t count) {
    for (std::uint32_t root = 0; root < r.ranks(); ++root) {
      const bool at_root = r.rank() == root;
      const Buffer shard = data_of(r.rank(), count);
      const DeviceTarget all = r.device.room(at_root ? shard.size() * r.ranks() : 0);
      r.self.gather(r.device.put(shard), all, Rank{root}, r.stream());
      const DeviceTarget back = r.device.room(shard.size());
      r.self.scatter(all, back, Rank{root}, r.stream());
      r.self.wait();
      EXPECT_TRUE(!at_root || r.device.get(all) == concatenated(r.ranks(), count));
      EXPECT_EQ(r.device.get(back), shard);
    }
  });
}

TEST_P(DeviceCommunicatorContract, GatherAndScatterWorkInPlaceAtTheRoot) {
  run_counts([](DeviceRank& r, std::size_t count) {
    const bool at_root = r.rank() == 0;
    const Buffer shard = data_of(r.rank(), count);
    Buffer own(at_root ? shard.size() * r.ranks() : 0);
    if (at_root) std::ranges::copy(shard, own.begin());
    const DeviceTarget all = r.device.put(own);
    const DeviceTarget part = at_root ? part_of(all, 0, r.ranks()) : r.device.put(shard);
    r.self.gather(part, all, Rank{0}, r.stream());
    r.self.wait();
    EXPECT_TRUE(!at_root || r.device.get(all) == concatenated(r.ranks(), count));
    r.self.scatter(all, part, Rank{0}, r.stream());
    r.self.wait();
    EXPECT_EQ(r.device.get(part), shard);
  });
}

TEST_P(DeviceCommunicatorContract, AllToAllTransposes) {
  run_counts([](DeviceRank& r, std::size_t count) {
    Buffer source;
    Buffer expected;
    for (std::uint32_t other = 0; other < r.ranks(); ++other) {
      const Buffer to = data_of(r.ranks() * r.rank() + other, count);
      const Buffer from = data_of(r.ranks() * other + r.rank(), count);
      source.insert(source.end(), to.begin(), to.end());
      expected.insert(expected.end(), from.begin(), from.end());
    }
    const DeviceTarget target = r.device.room(source.size());
    r.self.all_to_all(r.device.put(source), target, r.stream());
    r.self.wait();
    EXPECT_EQ(r.device.get(target), expected);
  });
}

TEST_P(DeviceCommunicatorContract, MessagesOfAPairArriveInOrder) {
  if (ranks() < 2) return;  // a group of one has nobody to send to
  run([](DeviceRank& r) {
    for (std::uint32_t i = 0; i < 5; ++i) {
      for (const std::size_t count : kCounts) {
        const Buffer message = data_of(i, count);
        if (r.rank() == 0) r.self.send(r.device.put(message), Rank{1}, r.stream());
        if (r.rank() != 1) continue;
        const DeviceTarget received = r.device.room(message.size());
        r.self.receive(received, Rank{0}, r.stream());
        r.self.wait();
        EXPECT_EQ(r.device.get(received), message);
      }
    }
  });
}

TEST_P(DeviceCommunicatorContract, RanksExchangeInARing) {
  if (ranks() < 2) return;
  run_counts([](DeviceRank& r, std::size_t count) {
    const std::uint32_t to = (r.rank() + 1) % r.ranks();
    const std::uint32_t from = (r.rank() + r.ranks() - 1) % r.ranks();
    const DeviceTarget received = r.device.room(data_of(from, count).size());
    r.self.exchange(r.device.put(data_of(r.rank(), count)), Rank{to}, received, Rank{from},
                    r.stream());
    r.self.wait();
    EXPECT_EQ(r.device.get(received), data_of(from, count));
  });
}

// Nobody waits between operations, of which there are more than may be under way.
TEST_P(DeviceCommunicatorContract, OperationsFollowTheStream) {
  run([](DeviceRank& r) {
    const std::vector<float> ones(37, 1);
    const DeviceTarget data = r.device.put(encoded(ones, DType::fp32));
    const DeviceTarget all = r.device.room(data.size * r.ranks());
    for (int i = 0; i < 5; ++i) {
      r.self.all_reduce(data, DType::fp32, r.stream());
      r.self.all_gather(data, all, r.stream());
      r.self.barrier(r.stream());
      r.self.reduce_scatter(all, data, DType::fp32, r.stream());
    }
    r.self.wait();
    float expected = 1;
    for (int i = 0; i < 10; ++i) expected *= static_cast<float>(r.ranks());
    EXPECT_EQ(r.device.get(data), encoded(std::vector<float>(37, expected), DType::fp32));
  });
}

TEST_P(DeviceCommunicatorContract, CountsSentBytesAsTheHostDoes) {
  run([](DeviceRank& r) {
    Buffer shard(52);
    Buffer all(shard.size() * r.ranks());
    Buffer at_root(r.rank() == 0 ? all.size() : 0);
    Buffer other(all.size());
    const DeviceTarget device_shard = r.device.put(shard);
    const DeviceTarget device_all = r.device.put(all);
    const DeviceTarget device_root{device_all.address, at_root.size()};
    const DeviceTarget device_other = r.device.put(other);
    void* const stream = r.stream();
    const auto expect_equal = [&](Operation operation, const auto& on_device, const auto& on_host) {
      on_device();
      r.self.wait();
      const Bytes before = r.host.sent(operation);
      on_host().wait();
      EXPECT_EQ(r.self.sent(operation), r.host.sent(operation) - before) << name_of(operation);
    };
    expect_equal(
        Operation::all_gather, [&] { r.self.all_gather(device_shard, device_all, stream); },
        [&] { return r.host.all_gather(shard, all); });
    expect_equal(
        Operation::reduce_scatter,
        [&] { r.self.reduce_scatter(device_all, device_shard, DType::bf16, stream); },
        [&] {
          return r.host.reduce_scatter(all, shard, {DType::bf16, DType::bf16});
        });
    expect_equal(
        Operation::all_reduce, [&] { r.self.all_reduce(device_shard, DType::fp32, stream); },
        [&] { return r.host.all_reduce(shard, DType::fp32); });
    expect_equal(
        Operation::broadcast, [&] { r.self.broadcast(device_all, Rank{0}, stream); },
        [&] { return r.host.broadcast(all, Rank{0}); });
    expect_equal(
        Operation::reduce, [&] { r.self.reduce(device_all, DType::fp16, Rank{0}, stream); },
        [&] { return r.host.reduce(all, DType::fp16, Rank{0}); });
    expect_equal(
        Operation::gather, [&] { r.self.gather(device_shard, device_root, Rank{0}, stream); },
        [&] { return r.host.gather(shard, at_root, Rank{0}); });
    expect_equal(
        Operation::scatter, [&] { r.self.scatter(device_root, device_shard, Rank{0}, stream); },
        [&] { return r.host.scatter(at_root, shard, Rank{0}); });
    expect_equal(
        Operation::all_to_all, [&] { r.self.all_to_all(device_all, device_other, stream); },
        [&] { return r.host.all_to_all(all, other); });
  });
}

// Of the even ranks and of the odd ones, each in the opposite order, on one stream with all ranks.
TEST_P(DeviceCommunicatorContract, SubgroupsFollowTheStreamOfAll) {
  constexpr std::size_t kCount = 24;
  run([](DeviceRank& r) {
    std::vector<Rank> members;
    for (std::uint32_t rank = r.ranks(); rank-- > 0;) {
      if (rank % 2 == r.rank() % 2) members.emplace_back(rank);
    }
    const auto half = r.self.subgroup(members);
    Buffer expected;
    for (const Rank member : members) {
      const Buffer sum = total_of(r.ranks(), kCount * r.ranks(), DType::fp32);
      const auto part = std::span(sum).subspan(kCount * sizeof(float) * member.value());
      expected.insert(expected.end(), part.begin(), part.begin() + kCount * sizeof(float));
    }
    const Buffer own = addend_of(r.rank(), kCount * r.ranks(), DType::fp32);
    const DeviceTarget shard = r.device.room(kCount * sizeof(float));
    const DeviceTarget gathered = r.device.room(expected.size());
    r.self.reduce_scatter(r.device.put(own), shard, DType::fp32, r.stream());
    half->all_gather(shard, gathered, r.stream());
    r.self.all_reduce(shard, DType::fp32, r.stream());
    half->wait();
    EXPECT_EQ(r.device.get(gathered), expected);
    EXPECT_EQ(half->sent(), Bytes{shard.size * (members.size() - 1)});
    EXPECT_EQ(r.self.sent(Operation::all_gather), Bytes{});
  });
}

TEST_P(DeviceCommunicatorContract, RefusesWhatDoesNotFitAndGoesOn) {
  run([](DeviceRank& r) {
    const auto expect_refused = [](const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      }
    };
    const DeviceTarget small = r.device.room(8);
    const DeviceTarget wrong = r.device.room(8 * r.ranks() + 4);
    const Rank self = r.host.rank();
    void* const stream = r.stream();
    expect_refused([&] { r.self.all_gather(small, wrong, stream); });
    expect_refused([&] { r.self.reduce_scatter(wrong, small, DType::fp32, stream); });
    expect_refused([&] { r.self.all_reduce({small.address, 7}, DType::bf16, stream); });
    expect_refused([&] { r.self.reduce({small.address, 6}, DType::fp32, Rank{0}, stream); });
    expect_refused([&] { r.self.broadcast(small, Rank{r.ranks()}, stream); });
    expect_refused([&] { r.self.gather(small, wrong, self, stream); });
    expect_refused([&] { r.self.scatter(wrong, small, self, stream); });
    expect_refused([&] { r.self.all_to_all(small, wrong, stream); });
    expect_refused([&] { r.self.send(small, self, stream); });
    expect_refused([&] { r.self.receive(small, Rank{r.ranks()}, stream); });
    expect_refused([&] { r.self.exchange(small, self, small, self, stream); });
    expect_refused([&] { r.self.barrier(nullptr); });
    expect_refused([&] { static_cast<void>(r.self.subgroup(std::array{self, self})); });
    r.self.barrier(stream);
    r.self.wait();
    EXPECT_EQ(r.self.sent(), Bytes{});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceCommunicatorContract, testing::Values(1, 2, 3, 4, 8),
                         [](const auto& instance) { return fmt::format("{}", instance.param); });

}  // namespace
}  // namespace spillway::comm::device_communicator_contract_test
