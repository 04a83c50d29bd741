// Ranks on GPUs that fail, hang or disagree, on the emulated CUDA: how each of them ends.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "tests/comm/device_ranks.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::comm {

/// So long the devices may make no progress, and ranks may be late. Only the first is waited for,
/// but in the test that says so.
inline constexpr std::uint32_t kDeviceTimeoutMs = 500;
inline constexpr std::uint32_t kHostTimeoutMs = 20'000;
inline constexpr int kSystemError = 2;  // ncclSystemError

/// What is to happen in a job of three ranks, each with memory for 64 elements.
using Job = std::function<void(DeviceRank&, DeviceTarget)>;

/// Outcome of a rank; "" without an error.
struct End {
  std::string message;
  ErrorCode code = ErrorCode::internal;
};

inline constexpr std::uint32_t kRanks = 3;

/// Runs the job and returns how each rank has ended. Fails where that takes too long.
inline std::array<End, kRanks> ends_of(const Job& job,
                                       std::uint32_t host_timeout_ms = kHostTimeoutMs) {
  std::array<End, kRanks> ends;
  const auto start = std::chrono::steady_clock::now();
  ThreadGroup group(kRanks, {.communicator = {.timeout_ms = host_timeout_ms}});
  group.run([&](Communicator& host) {
    End& end = ends[host.rank().value()];
    RankDevice device;
    try {
      DeviceCommunicator self(host, device_options(kDeviceTimeoutMs));
      DeviceRank rank{host, device, self};
      job(rank, device.put(Buffer(256)));
    } catch (const Error& error) {
      end = {error.what(), error.code()};
    } catch (const std::exception& error) {
      end.message = error.what();
    }
    cuda_emulation::let_go_of_stream(device.stream());  // its memory is given back
  });
  cuda_emulation::mend_nccl();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  return ends;
}

inline std::array<std::string, kRanks> messages_of(const Job& job,
                                                   std::uint32_t host_timeout_ms = kHostTimeoutMs) {
  const auto ends = ends_of(job, host_timeout_ms);
  return {ends[0].message, ends[1].message, ends[2].message};
}

inline void sum(DeviceRank& r, DeviceTarget data) {
  r.self.all_reduce(data, DType::fp32, r.stream());
}

/// Expects every rank to hear that ranks disagree. The first that notices tells the others.
inline void expect_disagreement(const Job& job, const std::vector<std::string>& words) {
  const auto ends = ends_of(job);
  EXPECT_THAT(ends, testing::Contains(testing::Field(&End::code, ErrorCode::invalid_argument)));
  for (const End& end : ends) {
    EXPECT_THAT(end.message, testing::HasSubstr("the ranks disagree"));
    for (const std::string& word : words) EXPECT_THAT(end.message, testing::HasSubstr(word));
  }
}

}  // namespace spillway::comm
