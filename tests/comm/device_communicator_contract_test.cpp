// The contract of DeviceCommunicator, which does what Communicator does: on a GPU with NCCL, which
// takes one rank for each, and with several ranks on the emulated CUDA.
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

SumTypes sum_of_type(const Communicator& /*host*/, DType dtype) { return {dtype, dtype}; }
DType sum_of_type(const DeviceCommunicator& /*device*/, DType dtype) { return dtype; }

/// What an operation leaves that is compared.
enum class Leaves : std::uint8_t { nothing, shard, both };

/// Runs an operation of the host's and the device's, `call(self, shard, all, stream...)`, on equal
/// buffers: they leave the same and send as many bytes. In place, `shard` is the rank's part.
struct AsTheHost {
  DeviceRank& r;
  Buffer shard, all;
  bool in_place = false;
  Leaves leaves = Leaves::both;

  template <class Call>
  void operator()(const Call& call) const {
    const DeviceTarget target = r.device.put(all);
    const DeviceTarget part = in_place ? part_of(target, r.rank(), r.ranks()) : r.device.put(shard);
    const Bytes sent = r.self.sent();
    call(r.self, part, target, r.stream());
    r.self.wait();
    Buffer own = shard, whole = all;
    const std::span<std::byte> mine =
        in_place ? comm::part_of(whole, r.rank(), r.ranks()) : std::span(own);
    const Bytes before = r.host.sent();
    call(r.host, mine, std::span(whole)).wait();
    EXPECT_EQ(r.self.sent() - sent, r.host.sent() - before);
    if (leaves == Leaves::nothing) return;
    EXPECT_TRUE(std::ranges::equal(r.device.get(part), mine));
    EXPECT_TRUE(leaves == Leaves::shard || r.device.get(target) == whole);
  }
};

// The host's are compared with values that are computed plainly, in their own contract.
TEST_P(DeviceCommunicatorContract, CollectivesDoWhatThoseOfTheHostDo) {
  for (const DType dtype : kTypes) {
    run_counts([&](DeviceRank& r, std::size_t count) {
      SCOPED_TRACE(name_of(dtype));
      const Buffer shard = addend_of(r.rank(), count, dtype);
      const Buffer all = addend_of(r.rank(), count * r.ranks(), dtype);
      for (const bool in_place : {false, true}) {
        AsTheHost{r, shard, all, in_place}([](auto& self, auto part, auto whole, auto... stream) {
          return self.all_gather(part, whole, stream...);
        });
        AsTheHost{r, shard, all, in_place, in_place ? Leaves::shard : Leaves::both}(
            [&](auto& self, auto part, auto whole, auto... stream) {
              return self.reduce_scatter(whole, part, sum_of_type(self, dtype), stream...);
            });
      }
      AsTheHost{r, all, all}([&](auto& self, auto source, auto target, auto... stream) {
        return self.all_to_all(source, target, stream...);
      });
      AsTheHost{r, {}, all}([&](auto& self, auto, auto data, auto... stream) {
        return self.all_reduce(data, dtype, stream...);
      });
    });
  }
}

TEST_P(DeviceCommunicatorContract, CollectivesWithARootDoWhatThoseOfTheHostDo) {
  run_counts([](DeviceRank& r, std::size_t count) {
    const Buffer shard = addend_of(r.rank(), count, DType::bf16);
    const Buffer data = addend_of(r.rank(), count * r.ranks(), DType::bf16);
    for (std::uint32_t rank = 0; rank < r.ranks(); ++rank) {
      const Rank root{rank};
      const bool at_root = r.host.rank() == root;
      const Buffer all = at_root ? data : Buffer{};
      for (const bool in_place : {false, at_root}) {
        AsTheHost{r, shard, all, in_place}([&](auto& self, auto part, auto whole, auto... stream) {
          return self.gather(part, whole, root, stream...);
        });
        AsTheHost{r, shard, all, in_place}([&](auto& self, auto part, auto whole, auto... stream) {
          return self.scatter(whole, part, root, stream...);
        });
      }
      AsTheHost{r, {}, data}([&](auto& self, auto, auto copied, auto... stream) {
        return self.broadcast(copied, root, stream...);
      });
      const Leaves leaves = at_root ? Leaves::both : Leaves::nothing;
      AsTheHost{r, {}, data, false, leaves}([&](auto& self, auto, auto summed, auto... stream) {
        return self.reduce(summed, DType::bf16, root, stream...);
      });
      r.device.clear();
    }
  });
}

TEST_P(DeviceCommunicatorContract, ExchangesDoWhatThoseOfTheHostDo) {
  if (ranks() < 2) return;  // a group of one has nobody to send to
  run_counts([](DeviceRank& r, std::size_t count) {
    const Rank to{(r.rank() + 1) % r.ranks()}, from{(r.rank() + r.ranks() - 1) % r.ranks()};
    AsTheHost{r, data_of(r.rank(), count + r.rank()), data_of(9, count + from.value())}(
        [&](auto& self, auto source, auto target, auto... stream) {
          return self.exchange(source, to, target, from, stream...);
        });
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
