// DeviceRunner: bodies/runner.hpp's Runner on a CUDA stream. Each call is one launch or memset.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <string>

#include "runtime/base/error.hpp"
#include "runtime/base/team.hpp"
#include "runtime/model/cuda/bodies/runner.hpp"

namespace spillway::model::cuda {

/// The lanes of a warp. As SerialTeam<32>, bit for bit.
struct WarpTeam {
  static constexpr unsigned kLanes = bodies::kWarp;

  template <class Body>
  __device__ void each(Body body) const {
    body(threadIdx.x % kLanes);
    __syncwarp();
  }
  template <class T, class Combine>
  __device__ T reduce(T* values, Combine combine) const {
    T value = values[threadIdx.x % kLanes];
    for (unsigned half = kLanes / 2; half > 0; half /= 2) {
      value = combine(value, __shfl_down_sync(~0U, value, half));
    }
    value = __shfl_sync(~0U, value, 0);
    __syncwarp();  // before anyone reuses `values`
    return value;
  }
  template <class T>
  __device__ T sum(T* values) const {
    return reduce(values, [](T a, T b) { return a + b; });
  }
};

namespace kernels {

inline constexpr unsigned kItemLanes = 256;

template <class Body>
__global__ void __launch_bounds__(kItemLanes) items(Body body, std::uint64_t count) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * kItemLanes;
  for (std::uint64_t item = std::uint64_t{blockIdx.x} * kItemLanes + threadIdx.x; item < count;
       item += step) {
    body(item);
  }
}

template <unsigned Lanes, class Body>
__global__ void __launch_bounds__(Lanes) teams(Body body, std::uint64_t count) {
  extern __shared__ __align__(16) std::byte shared[];
  for (std::uint64_t index = blockIdx.x; index < count; index += gridDim.x) {
    body(DeviceTeam<Lanes>{}, index, shared);
  }
}

template <class Body>
__global__ void __launch_bounds__(bodies::kWarp* bodies::kWarpsInBlock)
    warps(Body body, std::uint64_t count, std::size_t shared_bytes) {
  extern __shared__ __align__(16) std::byte shared[];
  const unsigned warp = threadIdx.x / bodies::kWarp;
  const std::uint64_t step = std::uint64_t{gridDim.x} * bodies::kWarpsInBlock;
  for (std::uint64_t index = std::uint64_t{blockIdx.x} * bodies::kWarpsInBlock + warp;
       index < count; index += step) {
    body(WarpTeam{}, index, shared + warp * shared_bytes);
  }
}

}  // namespace kernels

class DeviceRunner {
 public:
  explicit DeviceRunner(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  template <class Body>
  void items(const Body& body, std::uint64_t count) {
    if (count == 0) return;
    kernels::items<<<blocks(count, kernels::kItemLanes), kernels::kItemLanes, 0, stream_>>>(body,
                                                                                            count);
    check_device(cudaPeekAtLastError(), "launching a kernel");
  }

  template <unsigned Lanes, class Body>
  void teams(const Body& body, std::uint64_t count, std::size_t shared_bytes) {
    if (count == 0) return;
    if constexpr (Lanes == bodies::kWarp) {
      const std::size_t each = round_up(shared_bytes, bodies::kWordBytes);
      constexpr unsigned kThreads = bodies::kWarp * bodies::kWarpsInBlock;
      kernels::warps<<<blocks(count, bodies::kWarpsInBlock), kThreads, bodies::kWarpsInBlock * each,
                       stream_>>>(body, count, each);
    } else {
      kernels::teams<Lanes><<<blocks(count, 1), Lanes, shared_bytes, stream_>>>(body, count);
    }
    check_device(cudaPeekAtLastError(), "launching a kernel");
  }

  void zero(float* values, std::uint64_t count) {
    check_device(cudaMemsetAsync(values, 0, count * sizeof(float), stream_), "clearing memory");
  }

 private:
  /// Kernels loop where the grid cannot be as long as their work.
  static unsigned blocks(std::uint64_t count, unsigned in_block) {
    return static_cast<unsigned>(std::min<std::uint64_t>((count + in_block - 1) / in_block,
                                                         std::numeric_limits<int>::max()));
  }
  static void check_device(cudaError_t result, const char* what) {
    if (result == cudaSuccess) return;
    // Spelled without fmt, whose constant evaluation nvcc does not follow.
    throw Error(ErrorCode::device_error,
                std::string(what) + " failed: " + cudaGetErrorString(result) + " (" +
                    cudaGetErrorName(result) +
                    "); an earlier operation on the device may be the cause, which "
                    "compute-sanitizer names",
                static_cast<int>(result));
  }

  cudaStream_t stream_;
};

}  // namespace spillway::model::cuda
