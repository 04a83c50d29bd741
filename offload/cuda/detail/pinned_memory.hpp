// Pinned host memory for CUDA: the process's own pages, exact in size, in huge pages and near the
// GPU where the kernel grants that, registered with the driver. Nothing here counts or limits.
//
// Threads: the control thread; large buffers are touched by a few threads of its own.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "offload/cuda/detail/cuda_api.hpp"
#include "offload/detail/page_memory.hpp"
#include "runtime/base/topology.hpp"

namespace spillway::offload::cuda {

/// Says what came of asking for pinned memory: the address, or why there is none.
struct PinnedResult {
  std::byte* address = nullptr;
  std::string reason;  ///< empty where there is an address
  int native = 0;      ///< errno or cudaError_t
};

/// Maps bytes aligned to kPageBytes, on `node` as far as it has room. A refusal leaves nothing
/// mapped.
[[nodiscard]] PinnedResult map_pinned(CudaApi& api, const detail::PageRequest& request,
                                      std::optional<NodeIndex> node);
void unmap_pinned(CudaApi& api, std::byte* address, std::size_t size) noexcept;

/// What to do about a refusal, with the limits that apply to this process: cgroup, memlock.
[[nodiscard]] std::string pinned_remedy();

}  // namespace spillway::offload::cuda
