// The emulated CUDA: what its documentation promises holds in every order, and what it leaves
// undefined is found.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "runtime/base/cuda/kernel.cuh"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace cuda_emulation::cuda_emulation_test {
namespace {

using spillway::launch_kernel;

constexpr unsigned kThreads = 128;
constexpr std::uint64_t kSeeds = 40;

void expect(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorName(status); }

/// Device memory, pinned memory of the same size, and two streams.
class CudaEmulation : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 4096;
  static constexpr unsigned kCount = kBytes / sizeof(std::uint32_t);

  CudaEmulation() {
    set_order(late);
    expect(cudaMalloc(reinterpret_cast<void**>(&device_), kBytes));
    void* const pages =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    host_ = static_cast<std::uint32_t*>(pages);
    expect(cudaHostRegister(host_, kBytes, cudaHostRegisterDefault));
    for (cudaStream_t& stream : streams_) {
      expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    expect(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~CudaEmulation() override {
    for (cudaStream_t stream : streams_) static_cast<void>(cudaStreamDestroy(stream));
    static_cast<void>(cudaEventDestroy(event_));
    static_cast<void>(cudaHostUnregister(host_));
    static_cast<void>(cudaFree(device_));
    ::munmap(host_, kBytes);
  }

  void upload(cudaStream_t stream) {
    expect(cudaMemcpyAsync(device_, host_, kBytes, cudaMemcpyHostToDevice, stream));
  }
  void download(cudaStream_t stream) {
    expect(cudaMemcpyAsync(host_, device_, kBytes, cudaMemcpyDeviceToHost, stream));
  }
  template <class Kernel, class... Arguments>
  void start(Kernel* kernel, Arguments... arguments) {
    launch_kernel(
        "a test",
        {.blocks = 2, .threads = kThreads, .shared_bytes = kThreads * 4, .stream = streams_[0]},
        kernel, arguments...);
  }
  /// A memset on the first stream and a download on the second, which `order` puts behind it.
  template <class Ordering>
  std::uint32_t write_and_read(const Ordering& order) {
    host_[0] = 1;
    expect(cudaMemsetAsync(device_, 2, kBytes, streams_[0]));
    order();
    download(streams_[1]);
    expect(cudaStreamSynchronize(streams_[1]));
    const std::uint32_t found = host_[0];
    expect(cudaStreamSynchronize(streams_[0]));
    expect(cudaMemsetAsync(device_, 3, kBytes, streams_[0]));
    expect(cudaStreamSynchronize(streams_[0]));
    return found;
  }

  std::uint32_t* device_ = nullptr;
  std::uint32_t* host_ = nullptr;
  cudaStream_t streams_[2] = {};
  cudaEvent_t event_ = nullptr;
};

// --- streams and events

TEST_F(CudaEmulation, RunsLateWhatNobodyWaitsForAndEarlyWhatMay) {
  host_[0] = 5;
  upload(streams_[0]);
  host_[0] = 6;  // the copy has not read it
  download(streams_[0]);
  expect(cudaStreamSynchronize(streams_[0]));
  EXPECT_EQ(host_[0], 6U);
  set_order(early);
  upload(streams_[0]);
  host_[0] = 7;  // the copy has
  download(streams_[0]);
  EXPECT_EQ(host_[0], 6U);
}

TEST_F(CudaEmulation, KeepsWhatEventsOrderInEveryOrder) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    set_order(seed);
    EXPECT_EQ(write_and_read([&] {
                expect(cudaEventRecord(event_, streams_[0]));
                expect(cudaStreamWaitEvent(streams_[1], event_, 0));
              }),
              0x02020202U)
        << seed;
  }
}

TEST_F(CudaEmulation, ShowsAWaitThatIsMissingOrForAnEventOnTheWrongStream) {
  int without = 0;
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    set_order(seed);
    without += write_and_read([] {}) != 0x02020202U;
    wrong += write_and_read([&] {
               expect(cudaEventRecord(event_, streams_[1]));
               expect(cudaStreamWaitEvent(streams_[1], event_, 0));
             }) != 0x02020202U;
  }
  EXPECT_GT(without, 0);
  EXPECT_GT(wrong, 0);
}

TEST_F(CudaEmulation, TheNullHandleIsTheDefaultStreamOfTheCurrentDevice) {
  set_devices(2);
  cudaStream_t const own = static_cast<cudaStream_t>(default_stream(0));
  EXPECT_NE(own, default_stream(1));
  host_[0] = 1;
  expect(cudaMemsetAsync(device_, 4, kBytes, own));
  expect(cudaEventRecord(event_, nullptr));
  expect(cudaStreamWaitEvent(streams_[1], event_, 0));
  download(streams_[1]);
  expect(cudaStreamSynchronize(streams_[1]));
  EXPECT_EQ(host_[0], 0x04040404U);
  expect(cudaSetDevice(1));
  EXPECT_EQ(cudaEventRecord(event_, nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  expect(cudaEventRecord(event_, streams_[0]));
  expect(cudaSetDevice(0));
  set_devices(1);
}

TEST_F(CudaEmulation, AnEventIsDoneOnlyBehindWhatWasBeforeIt) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    set_order(seed);
    expect(cudaMemsetAsync(device_, static_cast<int>(seed), kBytes, streams_[0]));
    download(streams_[0]);
    expect(cudaEventRecord(event_, streams_[0]));
    while (cudaEventQuery(event_) == cudaErrorNotReady) {
    }
    EXPECT_EQ(host_[kCount - 1], seed * 0x01010101U);
  }
}

// --- kernels

void reverse(std::uint32_t* values) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(spillway::block_memory());
  std::uint32_t* const own = values + blockIdx.x * kThreads;
  shared[threadIdx.x] = own[threadIdx.x];
  __syncthreads();
  own[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
}
void reverse_without_a_barrier(std::uint32_t* values) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(spillway::block_memory());
  std::uint32_t* const own = values + blockIdx.x * kThreads;
  shared[threadIdx.x] = own[threadIdx.x];
  own[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
}
void sum_of_warps(std::uint32_t* values) {
  std::uint32_t value = threadIdx.x;
  for (unsigned half = 16; half > 0; half /= 2) value += __shfl_down_sync(~0U, value, half);
  values[blockIdx.x * kThreads + threadIdx.x] = __shfl_sync(~0U, value, 0);
}
void leave_early(std::uint32_t* values) {
  if (threadIdx.x == 7) return;
  __syncthreads();
  values[threadIdx.x] = 0;
}
void wait_apart(std::uint32_t* values) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  values[threadIdx.x] = 0;
}
void overrun_shared_memory(std::uint32_t* values) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(spillway::block_memory());
  shared[kThreads + threadIdx.x] = values[threadIdx.x];
}
void write_behind(std::uint32_t* values, std::size_t index) { values[index] = 1; }

TEST_F(CudaEmulation, BarriersOrderTheThreadsOfABlock) {
  const auto reversed = [&](auto* kernel) {
    for (unsigned i = 0; i < kCount; ++i) host_[i] = i;
    upload(streams_[0]);
    start(kernel, device_);
    download(streams_[0]);
    expect(cudaStreamSynchronize(streams_[0]));
    bool good = true;
    for (unsigned i = 0; i < 2 * kThreads; ++i) {
      good &= host_[i] == i / kThreads * kThreads + kThreads - 1 - i % kThreads;
    }
    return good;
  };
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    set_order(seed);
    EXPECT_TRUE(reversed(reverse)) << seed;
#ifndef __SANITIZE_THREAD__
    EXPECT_FALSE(reversed(reverse_without_a_barrier)) << seed;
#endif
  }
}

TEST_F(CudaEmulation, ShufflesWithinEachWarp) {
  start(sum_of_warps, device_);
  download(streams_[0]);
  expect(cudaStreamSynchronize(streams_[0]));
  for (unsigned i = 0; i < 2 * kThreads; ++i) {
    const unsigned first = i % kThreads / 32 * 32;
    EXPECT_EQ(host_[i], 32 * first + 31 * 32 / 2);
  }
}

TEST_F(CudaEmulation, RefusesLaunchesBeyondTheDevicesLimits) {
  const auto launched = [&](std::uint64_t blocks, unsigned threads, std::size_t shared) {
    cudaLaunchConfig_t config{.gridDim = dim3(static_cast<unsigned>(blocks)),
                              .blockDim = dim3(threads),
                              .dynamicSmemBytes = shared,
                              .stream = streams_[0]};
    return cudaLaunchKernelEx(&config, reverse, device_);
  };
  EXPECT_EQ(launched(0, kThreads, 512), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched(1, 1025, 512), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched(std::uint64_t{1} << 31, 1, 512), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launched(1, kThreads, 100 << 10), cudaErrorInvalidValue);
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(cudaFuncSetAttribute(reverse, kAttribute, 228 << 10), cudaErrorInvalidValue);
  expect(cudaFuncSetAttribute(reverse, kAttribute, 227 << 10));
  EXPECT_EQ(launched(1, kThreads, 227 << 10), cudaSuccess);
}

using CudaEmulationDeathTest = CudaEmulation;

TEST_F(CudaEmulationDeathTest, FindsThreadsThatDoNotComeToABarrier) {
  set_order(early);
  EXPECT_DEATH(start(leave_early, device_), "have ended, 127 are at that barrier");
  EXPECT_DEATH(start(wait_apart, device_), "is at the barrier .* and others at");
}

#ifdef __SANITIZE_THREAD__
TEST_F(CudaEmulationDeathTest, ShowsThreadSanitizerThreadsThatNoBarrierOrders) {
  set_order(early);
  EXPECT_EXIT(
      {
        start(reverse_without_a_barrier, device_);
        std::exit(0);
      },
      testing::ExitedWithCode(66), "data race .* in reverse_without_a_barrier");
  EXPECT_EXIT(
      {
        start(reverse, device_);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}
#endif

TEST_F(CudaEmulationDeathTest, FindsMemoryThatIsNotThere) {
  set_order(early);
  EXPECT_DEATH(start(overrun_shared_memory, device_), "");
  EXPECT_DEATH(start(write_behind, device_, std::size_t{kCount}), "");
  std::uint32_t* freed = nullptr;
  expect(cudaMalloc(reinterpret_cast<void**>(&freed), kBytes));
  expect(cudaFree(freed));
  EXPECT_DEATH(start(write_behind, freed, std::size_t{0}), "");
}

TEST_F(CudaEmulationDeathTest, FindsALaunchThatWouldBlockItsThread) {
  const auto enqueue = [&](std::uint64_t count) {
    while (count-- > 0) expect(cudaMemsetAsync(device_, 0, kBytes, streams_[0]));
  };
  enqueue(kMostPending + 10);
  EXPECT_EQ(statistics().most_pending, kMostPending);
  EXPECT_DEATH(
      {
        refuse_to_block();
        enqueue(1);
      },
      "a launch would block");
}

// --- memory

TEST_F(CudaEmulation, DeviceMemoryIsUndefinedAndLimited) {
  download(streams_[0]);
  expect(cudaStreamSynchronize(streams_[0]));
  EXPECT_EQ(std::count(host_, host_ + kCount, ~0U), kCount);
  void* most = nullptr;
  EXPECT_EQ(cudaMalloc(&most, std::size_t{16} << 30), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaEmulationDeathTest, RefusesCopiesThatAreNotOfPinnedAndDeviceMemory) {
  std::vector<std::uint32_t> pageable(kCount);
  EXPECT_DEATH(
      cudaMemcpyAsync(device_, pageable.data(), kBytes, cudaMemcpyHostToDevice, streams_[0]),
      "not pinned");
  EXPECT_DEATH(cudaMemcpyAsync(host_, device_, kBytes + 4, cudaMemcpyDeviceToHost, streams_[0]),
               "not pinned");
  EXPECT_DEATH(cudaMemcpyAsync(pageable.data(), host_, kBytes, cudaMemcpyHostToDevice, streams_[0]),
               "no allocation");
  EXPECT_DEATH(
      {
        upload(streams_[0]);
        static_cast<void>(cudaHostUnregister(host_));
      },
      "yet to run");
  EXPECT_DEATH(cudaMemsetAsync(device_, 0, kBytes, nullptr), "default stream");
}

TEST_F(CudaEmulation, RegistersHostMemoryOnce) {
  EXPECT_EQ(cudaHostRegister(host_, kBytes, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostUnregister(host_ + 1), cudaErrorHostMemoryNotRegistered);
}

TEST(CudaEmulationErrors, StayWhereTheDeviceIsBroken) {
  break_device(cudaErrorIllegalAddress);
  void* address = nullptr;
  EXPECT_EQ(cudaMalloc(&address, 1), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  break_device(cudaSuccess);
  static_cast<void>(cudaGetLastError());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace cuda_emulation::cuda_emulation_test
