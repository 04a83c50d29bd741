// What DeviceCommunicator's contract does not say of one group alone: ranks that fail, hang or
// disagree in a subgroup, on the emulated CUDA.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <stdexcept>

#include "runtime/base/error.hpp"
#include "tests/comm/failing_device_ranks.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::comm::device_subgroup_test {
namespace {

using testing::Contains;
using testing::Each;
using testing::HasSubstr;

/// Returns this rank's end of the group of ranks 2 and 0, in this order, or of rank 1 alone.
std::unique_ptr<DeviceCommunicator> ends_or_middle(DeviceRank& r) {
  if (r.rank() == 1) return r.self.subgroup(std::array{Rank{1}});
  return r.self.subgroup(std::array{Rank{2}, Rank{0}});
}

// What its stream holds of the other group ends too.
TEST(DeviceSubgroups, EndAllRanksWithAnErrorThatNcclTellsLater) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    const auto group = ends_or_middle(r);
    cuda_emulation::lose_nccl();
    sum(r, data);
    group->all_reduce(data, DType::fp32, r.stream());
    r.host.barrier().wait();
    if (r.rank() == 0) cuda_emulation::fail_nccl(1, kSystemError, 2);
    const auto end = [&] { r.self.wait(); };
    EXPECT_THROW(end(), Error);
    if (r.rank() == 0 && !r.device.ends()) {
      ADD_FAILURE() << "something is left on the stream";
      cuda_emulation::discard_pending();
    }
    end();
  });
  EXPECT_THAT(messages[0], HasSubstr("NCCL failed on rank 0 in "));
  for (const std::uint32_t rank : {1U, 2U}) {
    EXPECT_THAT(messages[rank], HasSubstr("rank 0 has abandoned the group"));
    EXPECT_THAT(messages[rank], HasSubstr("unhandled system error"));
  }
}

TEST(DeviceSubgroups, EndAllRanksWhenOneFails) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    const auto group = ends_or_middle(r);
    if (r.rank() == 2) throw std::runtime_error("out of paper");
    if (r.rank() == 0) group->all_reduce(data, DType::fp32, r.stream());
    sum(r, data);
    r.self.wait();
  });
  EXPECT_EQ(messages[2], "out of paper");
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_THAT(messages[rank], HasSubstr("rank 2 has abandoned the group"));
  }
}

// Rank 0 has number 1 in the subgroup.
TEST(DeviceSubgroups, NameTheOneWhoseDeviceHangsByItsNumberInTheJob) {
  const auto messages = messages_of([](DeviceRank& r, DeviceTarget data) {
    const auto group = ends_or_middle(r);
    if (r.rank() == 0) cuda_emulation::hold_stream(r.stream());
    group->all_reduce(data, DType::fp32, r.stream());
    sum(r, data);
    r.self.wait();
  });
  EXPECT_THAT(messages, Each(HasSubstr("rank 0 is late in all_reduce")));
  EXPECT_THAT(messages, Contains(HasSubstr("rank 0 is late in all_reduce of subgroup ")));
}

TEST(DeviceSubgroups, ThatDisagreeEndWithTheNumbersOfTheJob) {
  expect_disagreement(
      [](DeviceRank& r, DeviceTarget data) {
        const auto group = ends_or_middle(r);
        if (r.rank() == 0) group->barrier(r.stream());
        if (r.rank() == 2) group->all_reduce(data, DType::fp32, r.stream());
        sum(r, data);
        r.self.wait();
      },
      {"rank 0 of 2 (the ranks of subgroup ", "rank 2 of 2 (the ranks of subgroup "});
}

}  // namespace
}  // namespace spillway::comm::device_subgroup_test
