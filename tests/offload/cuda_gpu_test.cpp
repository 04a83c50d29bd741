// The CUDA backend on a GPU: the contract, and what only a GPU can show.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "offload/cuda/cuda_backend.hpp"
#include "offload/cuda/cuda_device.hpp"
#include "offload/cuda/detail/cuda_backend.hpp"
#include "tests/offload/cuda_step_rules.hpp"
#include "tests/offload/device_backend_contract.hpp"

namespace spillway::offload::cuda_gpu_test {
namespace {

/// Empty on a machine with a GPU.
std::string missing_gpu() {
  const std::string reason = cuda_unavailable_reason();
  return reason.empty() ? reason : "this machine has no usable GPU: " + reason;
}

BackendUnderTest gpu() {
  return {.name = "cuda",
          .make =
              [](const BackendLimits& limits) {
                return make_cuda_backend({.device_capacity = limits.device_capacity,
                                          .pinned_capacity = limits.pinned_capacity});
              },
          .unavailable = missing_gpu};
}
INSTANTIATE_TEST_SUITE_P(Gpu, DeviceBackendContract, ::testing::Values(gpu()),
                         [](const auto& instance) { return instance.param.name; });

class CudaGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = missing_gpu();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(CudaGpu, AStepOnlyEnqueuesAndQueries) {
  cuda::expect_a_step_only_enqueues_and_queries(cuda::make_cuda_api());
}

// CUDA takes no copy across two registrations: memory that is larger than a piece has several.
TEST_F(CudaGpu, SeamsOfPinnedMemoryDoNotShow) {
  const auto backend = cuda::make_backend(
      cuda::make_cuda_api(),
      {.device_capacity = 1_MiB, .pinned_capacity = 4_MiB, .pinned_piece = Bytes{5 * kPageBytes}});
  const PinnedMemory sent(*backend, 1_MiB);
  const PinnedMemory received(*backend, 1_MiB);
  const DeviceMemory device(*backend, 1_MiB);
  std::uint32_t next = 0;
  for (std::byte& byte : sent.host()) byte = static_cast<std::byte>(++next * 2654435761U >> 24);
  const auto stream = backend->make_stream("both");
  // Neither ends nor the middle is at a seam.
  stream->upload(device.device().subspan(24, 1'000'000), sent.host().subspan(8, 1'000'000));
  stream->download(received.host().subspan(16, 1'000'000), device.device().subspan(24, 1'000'000));
  stream->synchronize();
  EXPECT_TRUE(std::ranges::equal(sent.host().subspan(8, 1'000'000),
                                 received.host().subspan(16, 1'000'000)));
}

TEST_F(CudaGpu, TellsAboutItself) {
  const CudaDevice device = query_cuda_device();
  EXPECT_FALSE(device.name.empty());
  EXPECT_GT(device.total_memory, 1_GiB);
  EXPECT_LE(device.free_memory, device.total_memory);
  EXPECT_GE(device.compute_major, 8);
  EXPECT_GT(device.multiprocessors, 0);
  EXPECT_GE(device.driver_version, device.runtime_version / 1000 * 1000);
}

// 1 GiB takes 8 ms or more over any link of today; a call that waited would find the event done.
TEST_F(CudaGpu, EnqueueingACopyDoesNotWaitForIt) {
  const auto backend = make_cuda_backend({.device_capacity = 1_GiB, .pinned_capacity = 1_GiB});
  const PinnedMemory host(*backend, 1_GiB);
  const DeviceMemory device(*backend, 1_GiB);
  const auto stream = backend->make_stream("h2d");
  const auto event = backend->make_event();
  stream->upload(device.device().subspan(0, 4096), host.host().subspan(0, 4096));
  stream->synchronize();
  stream->upload(device.device(), host.host());
  stream->record(*event);
  EXPECT_FALSE(event->done());
  stream->synchronize();
  EXPECT_TRUE(event->done());
}

TEST_F(CudaGpu, CopiesEachWayOverlap) {
  const auto backend = make_cuda_backend({.device_capacity = 1_GiB, .pinned_capacity = 1_GiB});
  const PinnedMemory sent(*backend, 512_MiB);
  const PinnedMemory received(*backend, 512_MiB);
  const DeviceMemory target(*backend, 512_MiB);
  const DeviceMemory source(*backend, 512_MiB);
  const auto up = backend->make_stream("h2d");
  const auto down = backend->make_stream("d2h");
  const auto seconds = [&](bool upload, bool download) {
    const auto start = std::chrono::steady_clock::now();
    if (upload) up->upload(target.device(), sent.host());
    if (download) down->download(received.host(), source.device());
    up->synchronize();
    down->synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double both = 1e9;
  double apart = 1e9;
  for (int attempt = 0; attempt < 5; ++attempt) {
    both = std::min(both, seconds(true, true));
    apart = std::min(apart, seconds(true, false) + seconds(false, true));
  }
  EXPECT_LT(both, 0.8 * apart);  // one after the other would take all of it
}

}  // namespace
}  // namespace spillway::offload::cuda_gpu_test
