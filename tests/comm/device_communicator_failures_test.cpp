// Ranks on GPUs that fail, hang or disagree, on the emulated CUDA: every rank ends with an error
// that names the one to blame. Also the orders in which streams may run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/detail/device_record.hpp"
#include "runtime/base/error.hpp"
#include "tests/comm/failing_device_ranks.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::comm::device_communicator_failures_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;

constexpr int kRemoteError = 6;  // ncclRemoteError
constexpr int kInProgress = 7;   // ncclInProgress

/// Lets a rank hang until the others have ended.
class Others {
 public:
  explicit Others(std::ptrdiff_t count) : over_(count) {}
  void run(const std::function<void()>& body) {
    const std::unique_ptr<std::latch, void (*)(std::latch*)> count_down(
        &over_, [](std::latch* over) { over->count_down(); });
    body();
  }
  void wait() { over_.wait(); }

 private:
  std::latch over_;
};

TEST(DeviceRanks, AreToldWhoHasFailedAndWhy) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    sum(r, data);
    r.self.wait();
    if (r.rank() == 1) throw std::runtime_error("out of paper");
    sum(r, data);
    r.self.wait();
  });
  EXPECT_EQ(messages[1], "out of paper");
  for (const std::uint32_t rank : {0U, 2U}) {
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("all_reduce (collective"),
                                      HasSubstr("rank 1 has abandoned the group")));
  }
}

TEST(DeviceRanks, EndWhenOneDoesNotStartWhatTheyDo) {
  Others others(2);
  const auto messages = messages_of(
      [&](DeviceRank& r, DeviceTarget data) {
        sum(r, data);
        r.self.wait();
        if (r.rank() == 2) return others.wait();  // it hangs
        others.run([&] {
          sum(r, data);
          r.self.wait();
        });
      },
      1000);
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_THAT(messages[rank], HasSubstr("waited 1 s for rank 2"));
    EXPECT_THAT(messages[rank], HasSubstr("all_reduce (collective 2, 256 bytes)"));
  }
}

TEST(DeviceRanks, NameTheOneWhoseDeviceHangs) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    if (r.rank() == 1) cuda_emulation::hold_stream(r.stream());
    sum(r, data);
    sum(r, data);
    r.self.wait();
  });
  EXPECT_THAT(messages, Each(HasSubstr("rank 1 is late in all_reduce (collective 1, 256 bytes)")));
}

// As it would be if the network between the GPUs had stopped.
TEST(DeviceRanks, SayWhenNoneIsLate) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    sum(r, data);
    r.self.wait();
    r.host.barrier().wait();
    if (r.rank() == 0) cuda_emulation::lose_nccl();
    r.host.barrier().wait();
    sum(r, data);
    r.self.wait();
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("waits in all_reduce (collective 2, 256 bytes)"),
                                   HasSubstr("no rank is late"))));
}

TEST(DeviceRanks, NameTheOneThatHasGoneOnWithoutThem) {
  using Kind = detail::DeviceRecord::Kind;
  const auto record = [](std::uint64_t number, Kind kind) {
    return detail::DeviceRecord{.header = {.number = number}, .kind = kind};
  };
  const std::array records{record(2, Kind::stuck_within), record(3, Kind::started),
                           record(2, Kind::stuck_within)};
  EXPECT_THAT([&] { detail::compare(records, detail::Members(Rank{2}, 3)); },
              testing::ThrowsMessage<Error>(
                  HasSubstr("rank 0 waits in barrier (collective 2, 0 bytes), and rank 1, which "
                            "has started barrier (collective 3, 0 bytes), does not")));
}

TEST(DeviceRanks, EndWithAnErrorThatNcclTellsLater) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    sum(r, data);
    r.self.wait();
    if (r.rank() == 2) cuda_emulation::fail_nccl(2, kSystemError);
    sum(r, data);
    r.self.wait();
  });
  EXPECT_THAT(messages[2], HasSubstr("NCCL failed on rank 2 in all_reduce (collective 2, 256 "
                                     "bytes): unhandled system error"));
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_THAT(messages[rank], HasSubstr("rank 2 has abandoned the group"));
    EXPECT_THAT(messages[rank], HasSubstr("unhandled system error"));
  }
}

// NCCL does not say whose process it was; the host's communicator does.
TEST(DeviceRanks, NameTheOneWhoseProcessNcclMisses) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    sum(r, data);
    r.self.wait();
    r.host.barrier().wait();
    if (r.rank() == 0) cuda_emulation::fail_nccl(0, kRemoteError);
    sum(r, data);
    if (r.rank() == 1) throw std::runtime_error("out of paper");
    r.self.wait();
  });
  for (const std::uint32_t rank : {0U, 2U}) {
    EXPECT_THAT(messages[rank], HasSubstr("rank 1 has abandoned the group"));
  }
}

/// Returns how each of two ranks fails to join, after `prepare` was called with its number.
std::array<std::string, 2> failures_to_join(const std::function<void(int)>& prepare,
                                            std::uint32_t timeout_ms = kDeviceTimeoutMs) {
  const auto start = std::chrono::steady_clock::now();
  ThreadGroup group(2, {.communicator = {.timeout_ms = kHostTimeoutMs}});
  std::array<std::string, 2> messages;
  group.run([&](Communicator& host) {
    const RankDevice device;
    prepare(static_cast<int>(host.rank().value()));
    try {
      const DeviceCommunicator self(host, device_options(timeout_ms));
    } catch (const Error& error) {
      messages[host.rank().value()] = error.what();
    }
  });
  cuda_emulation::mend_nccl();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  return messages;
}

TEST(DeviceRanks, EndWhenOneCannotJoin) {
  const auto messages = failures_to_join([](int rank) {
    if (rank == 1) cuda_emulation::fail_nccl(1, kSystemError);
  });
  EXPECT_THAT(messages[1], HasSubstr("NCCL failed on rank 1"));
  EXPECT_THAT(messages[0], HasSubstr("rank 1 has abandoned the group"));
}

TEST(DeviceRanks, EndWhenNcclDoesNotJoinThem) {
  const auto messages =
      failures_to_join([](int rank) { cuda_emulation::fail_nccl(rank, kInProgress); });
  EXPECT_THAT(messages, Each(HasSubstr("NCCL to join 2 ranks")));
  EXPECT_THAT(messages, Contains(HasSubstr("waited 0.5 s")));
}

TEST(DeviceRanks, RefuseAnNcclThatIsTooOld) {
  const auto messages = failures_to_join([](int) { cuda_emulation::pretend_nccl(21201); });
  EXPECT_THAT(messages, Each(HasSubstr("libnccl.so.2 is NCCL 2.12.1")));
  EXPECT_THAT(messages, Each(HasSubstr("2.18 or newer")));
}

// It has to abort communicators one after the other.
TEST(DeviceRanks, EndWithAnNcclThatAbortsNothingInAGroup) {
  const auto messages = failures_to_join([](int rank) {
    cuda_emulation::pretend_nccl(22105);
    if (rank == 1) cuda_emulation::fail_nccl(1, kSystemError);
  });
  EXPECT_THAT(messages[1], HasSubstr("NCCL failed on rank 1"));
  EXPECT_THAT(messages[0], HasSubstr("rank 1 has abandoned the group"));
}

// They do not wait until NCCL gives up.
TEST(DeviceRanks, RefuseAnNcclOfAnotherVersionThanThatOfRank0) {
  const auto messages = failures_to_join(
      [](int rank) {
        if (rank == 1) cuda_emulation::pretend_nccl(22703);
      },
      kHostTimeoutMs);
  EXPECT_THAT(messages, Each(HasSubstr("rank 1 has NCCL 2.27.3")));
  EXPECT_THAT(messages, Each(HasSubstr("rank 0 has 2.28.9")));
}

TEST(DeviceRanks, FailTheSameAgainAndAgain) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    std::string first;
    try {
      if (r.rank() == 0) cuda_emulation::fail_nccl(0, kSystemError);
      sum(r, data);
      r.self.wait();
    } catch (const Error& error) {
      first = error.what();
    }
    try {
      r.self.barrier(r.stream());
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), first);
      throw;
    }
  });
  EXPECT_THAT(messages, Each(HasSubstr("rank 0")));
}

TEST(DeviceRanks, ThatDisagreeEndWithWhatEachCalled) {
  expect_disagreement(
      [](DeviceRank& r, DeviceTarget data) {
        if (r.rank() == 1) {
          r.self.barrier(r.stream());
        } else {
          sum(r, data);
        }
        r.self.wait();
      },
      {"all_reduce of 256 bytes", "barrier of 0 bytes"});
  expect_disagreement(
      [](DeviceRank& r, DeviceTarget data) {
        sum(r, {data.address, r.rank() == 1 ? 128U : 256U});
        r.self.wait();
      },
      {"all_reduce of 256 bytes", "all_reduce of 128 bytes"});
  expect_disagreement(
      [](DeviceRank& r, DeviceTarget data) {
        r.self.all_reduce(data, r.rank() == 1 ? DType::bf16 : DType::fp16, r.stream());
        r.self.wait();
      },
      {"fp16 to fp16", "bf16 to bf16"});
  expect_disagreement(
      [](DeviceRank& r, DeviceTarget data) {
        r.self.broadcast(data, Rank{r.rank() == 1 ? 1U : 0U}, r.stream());
        r.self.wait();
      },
      {"root 0", "root 1"});
}

TEST(DeviceRanks, ThatExpectOtherSizesOfEachOtherEnd) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    if (r.rank() == 0) r.self.send(data, Rank{1}, r.stream());
    if (r.rank() == 1) r.self.receive({data.address, 128}, Rank{0}, r.stream());
    r.self.wait();
  });
  EXPECT_THAT(messages[1],
              AllOf(HasSubstr("receive of 128 bytes"), HasSubstr("send of 256 bytes")));
  EXPECT_THAT(messages[0], HasSubstr("rank 1"));
}

TEST(DeviceRanks, NameTheOtherEndOfATransferThatDoesNotEnd) {
  Others others(1);
  const auto messages = messages_of([&](DeviceRank& r, DeviceTarget data) {
    if (r.rank() == 2) return;
    if (r.rank() == 1) {
      cuda_emulation::hold_stream(r.stream());
      r.self.receive(data, Rank{0}, r.stream());
      return others.wait();
    }
    others.run([&] {
      r.self.send(data, Rank{1}, r.stream());
      r.self.wait();
    });
  });
  EXPECT_THAT(messages[0], HasSubstr("rank 0 waits in send (256 bytes)"));
  EXPECT_THAT(messages[0], HasSubstr("rank 1 has died, or its device hangs"));
}

TEST(DeviceRanks, HaveTheSameSumsInEveryOrderOfTheStreams) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    cuda_emulation::set_order(seed);
    run_ranks(3, [&](DeviceRank& r) {
      const DeviceTarget data = r.device.put(encoded(std::vector<float>(100, 1), DType::fp32));
      const DeviceTarget all = r.device.room(3 * data.size);
      for (int i = 0; i < 4; ++i) {
        r.self.all_gather(data, all, r.stream());
        r.self.all_to_all(all, r.device.room(all.size), r.stream());
        r.self.reduce_scatter(all, data, DType::fp32, r.stream());
      }
      r.self.wait();
      EXPECT_EQ(r.device.get(data), encoded(std::vector<float>(100, 81), DType::fp32)) << seed;
    });
  }
  cuda_emulation::set_order(cuda_emulation::late);
}

}  // namespace
}  // namespace spillway::comm::device_communicator_failures_test
