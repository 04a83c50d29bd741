// Counts heap allocations of the whole test process, on every thread.
#pragma once

#include <cstddef>

namespace spillway::nvme_swap {

/// Allocations through `operator new` since the process began.
[[nodiscard]] std::size_t allocation_count();

}  // namespace spillway::nvme_swap
