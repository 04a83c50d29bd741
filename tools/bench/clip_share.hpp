// How much of the steps a limit of the gradient's norm clips. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway::bench {

/// Returns a limit above 0 that so many of the norms exceed, the largest ones; they are positive,
/// and `clipped` is at most their number. It lies as far from the norms on both sides as it can.
[[nodiscard]] double limit_that_clips(std::vector<double> norms, std::uint64_t clipped);

}  // namespace spillway::bench
