// How long a rank waits for others before it says whom it waits for.
#pragma once

#include <chrono>

namespace spillway::comm::detail {

/// First wait that is told; each later one is longer.
inline constexpr std::chrono::seconds kSilence{10};

}  // namespace spillway::comm::detail
