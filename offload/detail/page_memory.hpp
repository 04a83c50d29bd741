// Host memory straight from the system, for every backend. Nothing here counts or limits. Any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/shared_pages.hpp"

namespace spillway::offload::detail {

/// Returns heap memory aligned to kPageBytes, for the "device". Exact to AddressSanitizer: the byte
/// after `size` is not the caller's. Null when the system refuses.
[[nodiscard]] std::byte* allocate_heap(std::size_t size) noexcept;
void free_heap(std::byte* address, std::size_t size) noexcept;

struct PageRequest {
  std::size_t size = 0;
  std::uint32_t number = 0;  ///< of the buffers of one owner, in any order
};

/// Maps just the pages that `size` needs, in huge pages where the kernel grants them. Large buffers
/// whose numbers differ modulo 8 are staggered (runtime/base/stagger.hpp), with room between them
/// for what is staggered inside each. Locking is left to the caller's limits: RLIMIT_MEMLOCK is 8
/// MiB by default. A child made by fork() does not have the pages, which would be copied at once
/// where a driver or io_uring has pinned them. Returns null, with errno set, when the system
/// refuses.
[[nodiscard]] std::byte* map_pages(const PageRequest& request) noexcept;
/// Throws `Error{invalid_argument}` for pages that their file has not.
void check_pages(const SharedPages& pages);
/// Maps pages of a file, which has them, in a row; a child made by fork() shares them. Returns
/// null, with errno set, when the system refuses.
[[nodiscard]] std::byte* map_shared_pages(const SharedPages& pages) noexcept;
/// Lets later children have such pages. Returns false, with errno set, when the system refuses.
[[nodiscard]] bool show_to_children(std::byte* address, std::size_t size) noexcept;
void unmap_pages(std::byte* address, std::size_t size) noexcept;

}  // namespace spillway::offload::detail
