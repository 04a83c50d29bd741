// DeviceRunner: bodies/runner.hpp's Runner on a CUDA stream. Each call is one launch or memset.
#pragma once

#include <algorithm>
#include <limits>

#include "runtime/base/cuda/kernel.cuh"
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
  for (std::uint64_t index = blockIdx.x; index < count; index += gridDim.x) {
    body(DeviceTeam<Lanes>{}, index, block_memory());
  }
}

template <class Body>
__global__ void __launch_bounds__(kWarpLanes* bodies::kWarpsInBlock)
    warps(Body body, std::uint64_t count, std::size_t shared_bytes) {
  const unsigned warp = threadIdx.x / kWarpLanes;
  const std::uint64_t step = std::uint64_t{gridDim.x} * bodies::kWarpsInBlock;
  for (std::uint64_t index = std::uint64_t{blockIdx.x} * bodies::kWarpsInBlock + warp;
       index < count; index += step) {
    body(WarpTeam{}, index, block_memory() + warp * shared_bytes);
  }
}

}  // namespace kernels

class DeviceRunner {
 public:
  explicit DeviceRunner(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  template <class Body>
  void items(const Body& body, std::uint64_t count) {
    if (count == 0) return;
    start({.blocks = blocks(count, kernels::kItemLanes), .threads = kernels::kItemLanes},
          kernels::items<Body>, body, count);
  }

  template <unsigned Lanes, class Body>
  void teams(const Body& body, std::uint64_t count, std::size_t shared_bytes) {
    if (count == 0) return;
    if constexpr (Lanes == kWarpLanes) {
      const std::size_t each = round_up(shared_bytes, bodies::kWordBytes);
      constexpr unsigned kThreads = kWarpLanes * bodies::kWarpsInBlock;
      start({.blocks = blocks(count, bodies::kWarpsInBlock),
             .threads = kThreads,
             .shared_bytes = bodies::kWarpsInBlock * each},
            kernels::warps<Body>, body, count, each);
    } else {
      start({.blocks = blocks(count, 1), .threads = Lanes, .shared_bytes = shared_bytes},
            kernels::teams<Lanes, Body>, body, count);
    }
  }

  void zero(float* values, std::uint64_t count) {
    check_cuda(cudaMemsetAsync(values, 0, count * sizeof(float), stream_), "clearing memory");
  }

 private:
  template <class Kernel, class... Arguments>
  void start(Launch launch, Kernel* kernel, const Arguments&... arguments) {
    launch.stream = stream_;
    launch_kernel("launching a kernel", launch, kernel, arguments...);
  }
  /// Blocks of a grid, in which kernels loop if they have more work.
  static unsigned blocks(std::uint64_t count, unsigned in_block) {
    return static_cast<unsigned>(std::min<std::uint64_t>((count + in_block - 1) / in_block,
                                                         std::numeric_limits<int>::max()));
  }

  cudaStream_t stream_;
};

}  // namespace spillway::model::cuda
