// Which streams the product asks CUDA to begin first.
#include <gtest/gtest.h>

#include "comm/device_communicator.hpp"
#include "comm/threads/thread_group.hpp"
#include "offload/cuda/cuda_backend.hpp"
#include "runtime/engine/step/executor.hpp"
#include "tests/support/cuda_emulation/include/cuda_runtime_api.h"

namespace spillway::engine::stream_priorities_test {
namespace {

int priority_of(const offload::Stream& stream) {
  int priority = 1;  // which no stream has
  EXPECT_EQ(cudaStreamGetPriority(static_cast<cudaStream_t>(stream.native()), &priority),
            cudaSuccess);
  return priority;
}

// Ranks wait for each other, and not for a pass.
TEST(StreamPriorities, WhatRanksExchangeIsAheadOfAllElse) {
  int last = 1;
  int first = 1;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&last, &first), cudaSuccess);
  ASSERT_LT(first, last);
  comm::ThreadGroup(1).run([&](comm::Communicator& self) {
    comm::DeviceCommunicator gpus(self, {});
    const auto backend =
        offload::make_cuda_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB});
    const Streams streams(*backend, &gpus);
    EXPECT_EQ(priority_of(*streams.net), first);
    for (const auto* stream : {&streams.compute, &streams.upload, &streams.download}) {
      EXPECT_EQ(priority_of(**stream), last);
    }
  });
}

}  // namespace
}  // namespace spillway::engine::stream_priorities_test
