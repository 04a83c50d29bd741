// Host memory straight from the system, for every backend. Nothing here counts or limits. Any
// thread.
#pragma once

#include <cstddef>

namespace spillway::offload::detail {

/// Heap memory aligned to kPageBytes, for the "device". Exact to AddressSanitizer: the byte after
/// `size` is not the caller's. Null when the system refuses.
[[nodiscard]] std::byte* allocate_heap(std::size_t size) noexcept;
void free_heap(std::byte* address, std::size_t size) noexcept;

/// Pages of the process, as many as `size` needs and no more, in huge pages where the kernel grants
/// them. Locking is left to the caller's limits: RLIMIT_MEMLOCK is 8 MiB by default. Null, with
/// errno set, when the system refuses.
[[nodiscard]] std::byte* map_pages(std::size_t size) noexcept;
void unmap_pages(std::byte* address, std::size_t size) noexcept;

}  // namespace spillway::offload::detail
