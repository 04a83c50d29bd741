// The software prefetch distance that suits this processor, found by a short measurement. It never
// changes a bit of the result: what gains 1.3x on one processor loses 8 % on another.
#pragma once

#include <array>
#include <cstddef>
#include <functional>

namespace spillway::cpu_adam {

/// These are counted in parameters; 0: none.
inline constexpr std::array<std::size_t, 5> kPrefetchDistances = {0, 128, 512, 1024, 2048};

/// Returns the distance at which `seconds`, the time of one pass with a given distance, is
/// smallest. Measures each in `rounds` rounds, interleaved so that a noisy moment hits all, and
/// takes the median of each; keeps 0 unless another is at least 3 % faster. A pass should take a
/// millisecond at least and leave the last-level cache.
[[nodiscard]] std::size_t calibrate_prefetch(const std::function<double(std::size_t)>& seconds,
                                             std::size_t rounds = 5);

}  // namespace spillway::cpu_adam
