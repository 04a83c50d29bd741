// What a step on the CUDA backend may call: the same check on the fake runtime and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "offload/cuda/detail/cuda_backend.hpp"
#include "offload/memory.hpp"
#include "tests/offload/counting_cuda.hpp"

namespace spillway::offload::cuda {

/// Rounds of copies over three streams, as a step makes them, and nothing else.
inline void expect_a_step_only_enqueues_and_queries(std::unique_ptr<CudaApi> api) {
  CudaCalls calls;
  const auto backend = make_backend(std::make_unique<CountingCuda>(std::move(api), calls),
                                    {.device_capacity = 64_MiB, .pinned_capacity = 64_MiB});
  const auto compute = backend->make_stream("compute");
  const auto up = backend->make_stream("h2d");
  const auto down = backend->make_stream("d2h");
  const auto uploaded = backend->make_event();
  const auto computed = backend->make_event();
  const auto downloaded = backend->make_event();
  const PinnedMemory source(*backend, 1_MiB);
  const PinnedMemory target(*backend, 1_MiB);
  const DeviceMemory device(*backend, 1_MiB);
  std::ranges::fill(source.host(), std::byte{7});
  std::ranges::fill(target.host(), std::byte{0});
  calls = {};
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    up->wait(*downloaded);
    up->upload(device.device(), source.host());
    up->record(*uploaded);
    compute->wait(*uploaded);
    compute->submit([] {});
    compute->record(*computed);
    down->wait(*computed);
    down->download(target.host(), device.device());
    down->record(*downloaded);
    while (!downloaded->done()) {
    }
  }
  EXPECT_EQ(calls.enqueued, 8 * kRounds);
  EXPECT_GE(calls.queries, kRounds);
  EXPECT_EQ(calls.synchronizing, 0);
  EXPECT_EQ(calls.default_stream, 0);
  EXPECT_TRUE(std::ranges::equal(source.host(), target.host()));
  for (Stream* const stream : {compute.get(), up.get(), down.get()}) {
    EXPECT_NE(stream->native(), nullptr);  // null is the default stream
  }
}

}  // namespace spillway::offload::cuda
