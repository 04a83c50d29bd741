// What every launch of this folder shares: the grid, the stream, the check. Any thread.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/base/cuda/check.hpp"
#include "runtime/base/error.hpp"

namespace spillway::cpu_adam::cuda::detail {
inline constexpr unsigned kThreads = 256;

/// Thread blocks for `work` items, `per_block` of them at a time in each; kernels take what is
/// left in strides of the grid.
inline unsigned grid_of(std::size_t work, std::size_t per_block) {
  constexpr std::size_t kMostBlocks = std::size_t{1} << 16;
  return static_cast<unsigned>(std::min((work + per_block - 1) / per_block, kMostBlocks));
}

inline cudaStream_t stream_of(void* stream) {
  SPILLWAY_ASSERT(stream != nullptr && "work for a device needs a stream of its own");
  return static_cast<cudaStream_t>(stream);
}

/// After a launch.
inline void check_launch(std::string_view what, SourceLocation where = SourceLocation::current()) {
  check_cuda(cudaGetLastError(), std::string(what) + " on the GPU", where);
}

}  // namespace spillway::cpu_adam::cuda::detail
