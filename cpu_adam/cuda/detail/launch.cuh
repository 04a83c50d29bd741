// What every launch of this folder shares: the grid, the stream, the check. Any thread.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"

namespace spillway::cpu_adam::cuda::detail {

inline constexpr unsigned kThreads = 256;

/// Thread blocks for `work` items, `per_block` of them at a time in each; kernels take what is left
/// in strides of the grid.
inline unsigned grid_of(std::size_t work, std::size_t per_block) {
  constexpr std::size_t kMostBlocks = std::size_t{1} << 16;
  return static_cast<unsigned>(std::min((work + per_block - 1) / per_block, kMostBlocks));
}

inline cudaStream_t stream_of(void* stream) {
  SPILLWAY_ASSERT(stream != nullptr && "work for a device needs a stream of its own");
  return static_cast<cudaStream_t>(stream);
}

/// Throws `Error{device_error}` unless `status` is success.
inline void check_device(cudaError_t status, std::string_view what,
                         SourceLocation where = SourceLocation::current()) {
  if (status == cudaSuccess) [[likely]]
    return;
  throw Error(ErrorCode::device_error,
              std::string(what) + " on the GPU failed: " + cudaGetErrorString(status) +
                  "; an earlier kernel of the same process may be the cause",
              static_cast<int>(status), where);
}

/// After a launch.
inline void check_launch(std::string_view what, SourceLocation where = SourceLocation::current()) {
  check_device(cudaGetLastError(), what, where);
}

}  // namespace spillway::cpu_adam::cuda::detail
