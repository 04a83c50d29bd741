// Pinned host memory for CUDA: the process's own pages, exact in size, in huge pages and near the
// GPU where the kernel grants that, registered with the driver in pieces. A seam between two pieces
// lies at every address that is a multiple of the piece's size: whoever copies knows where without
// asking. Nothing here counts or limits.
//
// Threads: the control thread; large buffers are touched by a few threads of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "offload/cuda/cuda_backend.hpp"
#include "offload/cuda/detail/cuda_api.hpp"
#include "offload/detail/page_memory.hpp"
#include "runtime/base/memory_budget.hpp"
#include "runtime/base/topology.hpp"

namespace spillway::offload::cuda {

/// Outcome of asking for pinned memory: the address, or why there is none.
struct PinnedResult {
  std::byte* address = nullptr;
  std::string reason;  ///< empty where there is an address
  int native = 0;      ///< errno or cudaError_t
};

class PageableMemory;

struct PinnedRequest {
  detail::PageRequest pages;
  std::size_t piece = 0;  ///< bytes that are registered in one call, at most
  PinnedBound bound = PinnedBound::available;
  std::optional<NodeIndex> node{};     ///< where the pages should lie, as far as it has room
  PageableMemory* pageable = nullptr;  ///< adopts what the driver does not pin; null: a refusal
};

/// Maps bytes aligned to kPageBytes. A refusal leaves nothing mapped or registered.
[[nodiscard]] PinnedResult map_pinned(CudaApi& api, const PinnedRequest& request);

/// Maps pages of a file likewise, and changes nothing there; `piece`: as that of a request.
[[nodiscard]] PinnedResult pin_shared(CudaApi& api, const SharedPages& pages, std::size_t piece);

struct PinnedExtent {
  std::size_t size = 0;
  std::size_t piece = 0;  ///< as it was mapped with
};
void unmap_pinned(CudaApi& api, std::byte* address, const PinnedExtent& extent) noexcept;

/// Calls `visit(first, count)`, in bytes from `address`, for each part between seams, until it
/// returns false.
template <class Visit>
void for_each_piece(const std::byte* address, std::size_t size, std::size_t piece,
                    const Visit& visit) {
  for (std::size_t first = 0; first < size;) {
    const std::size_t inside = (reinterpret_cast<std::uintptr_t>(address) + first) % piece;
    const std::size_t count = std::min(size - first, piece - inside);
    if (!visit(first, count)) return;
    first += count;
  }
}

/// Returns one line about a system that pins less than `capacity` without stating that limit; else
/// nothing.
[[nodiscard]] std::string pinned_warning(const MemoryBudget& memory, Bytes capacity);

/// Returns the remedy for a refusal, with the limits that apply to this process: cgroup, memlock.
[[nodiscard]] std::string pinned_remedy();

}  // namespace spillway::offload::cuda
