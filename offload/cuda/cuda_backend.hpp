// The CUDA backend: memory, streams and events of one NVIDIA GPU. A build without CUDA has it too,
// and refuses to make one.
//
// Device memory is taken with cudaMalloc, one allocation a line of the plan's table, when a run
// starts: nothing is allocated in a step, so that no pool or stream-ordered allocator is needed.
// Pinned memory is the process's own pages, near the GPU, registered with the driver piece by
// piece; a copy that crosses a seam between two pieces is made in parts. What the driver refuses to
// pin is copied through a pinned buffer, if there is room for that. All work goes to
// non-blocking streams of our own: the default stream, whose every use waits for the others, is
// never touched.
//
// Threads: the control thread, on which the backend was made: the device is current there. Others
// use streams of their own after SharedDevice::bind_thread.
#pragma once

#include <cstdint>
#include <memory>

#include "offload/device_backend.hpp"

namespace spillway::offload {

/// Bound on pinned memory besides the backend's capacity.
enum class PinnedBound : std::uint8_t {
  available,  ///< what the system says is available
  /// Bounds it no further: somebody who knows has said that it is there. Memory of some virtual
  /// machines and sandboxes grows as it is touched, and is not available before.
  capacity,
};

struct CudaBackendOptions {
  Bytes device_capacity;  ///< of device memory; allocations beyond it fail
  Bytes pinned_capacity;  ///< of pinned host memory
  int device = 0;         ///< as CUDA numbers them
  PinnedBound pinned_bound = PinnedBound::available;
  /// Most memory registered in one call, in whole pages: drivers of the 580 series refuse more than
  /// 512 GiB. Pieces begin at the addresses that are multiples of it.
  Bytes pinned_piece{std::uint64_t{64} << 30};
  /// The pinned buffer through which memory is copied that the driver refuses to pin, as beyond 1
  /// GiB on WSL2. It is for 8 streams, pinned when that happens, and beside the capacity.
  Bytes bounce_buffer{std::uint64_t{32} << 20};
};

/// Throws `Error{not_supported}` with `cuda_unavailable_reason`. Events do not wake: CUDA could
/// only do so through a host function that would hold up the stream.
[[nodiscard]] std::unique_ptr<DeviceBackend> make_cuda_backend(const CudaBackendOptions& options);

}  // namespace spillway::offload
