// Counts every call of the global operator new in this test binary, whichever thread makes it.
#pragma once

#include <cstdint>

namespace spillway::testing {

/// Calls since the program started.
[[nodiscard]] std::uint64_t allocations_so_far();

}  // namespace spillway::testing
