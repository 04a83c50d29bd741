// DeviceRunner: bodies/runner.hpp's Runner on a CUDA stream. Each call is one launch or memset.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "runtime/base/cuda/check.hpp"
#include "runtime/base/team.hpp"
#include "runtime/model/cuda/kernels/bodies/runner.hpp"

namespace spillway::model::cuda {

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
__global__ void __launch_bounds__(kWarpLanes* bodies::kWarpsInBlock)
    warps(Body body, std::uint64_t count, std::size_t shared_bytes) {
  extern __shared__ __align__(16) std::byte shared[];
  const unsigned warp = threadIdx.x / kWarpLanes;
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
    check_cuda(cudaPeekAtLastError(), "launching a kernel");
  }

  template <unsigned Lanes, class Body>
  void teams(const Body& body, std::uint64_t count, std::size_t shared_bytes) {
    if (count == 0) return;
    if constexpr (Lanes == kWarpLanes) {
      const std::size_t each = round_up(shared_bytes, bodies::kWordBytes);
      constexpr unsigned kThreads = kWarpLanes * bodies::kWarpsInBlock;
      kernels::warps<<<blocks(count, bodies::kWarpsInBlock), kThreads, bodies::kWarpsInBlock * each,
                       stream_>>>(body, count, each);
    } else {
      kernels::teams<Lanes><<<blocks(count, 1), Lanes, shared_bytes, stream_>>>(body, count);
    }
    check_cuda(cudaPeekAtLastError(), "launching a kernel");
  }

  void zero(float* values, std::uint64_t count) {
    check_cuda(cudaMemsetAsync(values, 0, count * sizeof(float), stream_), "clearing memory");
  }

 private:
  /// Kernels loop where the grid cannot be as long as their work.
  static unsigned blocks(std::uint64_t count, unsigned in_block) {
    return static_cast<unsigned>(std::min<std::uint64_t>((count + in_block - 1) / in_block,
                                                         std::numeric_limits<int>::max()));
  }

  cudaStream_t stream_;
};

}  // namespace spillway::model::cuda
