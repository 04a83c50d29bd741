// What every launch of this folder shares: the threads, the grid, the stream. Any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "runtime/base/cuda/kernel.cuh"
#include "runtime/base/error.hpp"

namespace spillway::cpu_adam::cuda::detail {
inline constexpr unsigned kThreads = 256;

/// Returns the thread blocks for `work` items, `per_block` of them at a time in each; kernels take
/// what is left in strides of the grid.
inline unsigned grid_of(std::size_t work, std::size_t per_block) {
  constexpr std::size_t kMostBlocks = std::size_t{1} << 16;
  return static_cast<unsigned>(std::min((work + per_block - 1) / per_block, kMostBlocks));
}

inline cudaStream_t stream_of(void* stream) {
  SPILLWAY_ASSERT(stream != nullptr && "work for a device needs a stream of its own");
  return static_cast<cudaStream_t>(stream);
}

/// Starts `kernel` on `blocks` blocks of kThreads, on a stream. Throws `Error{device_error}`.
template <class Kernel, class... Arguments>
void start(std::string_view what, unsigned blocks, void* stream, Kernel* kernel,
           const Arguments&... arguments) {
  launch_kernel(what, {.blocks = blocks, .threads = kThreads, .stream = stream_of(stream)}, kernel,
                arguments...);
}

}  // namespace spillway::cpu_adam::cuda::detail
