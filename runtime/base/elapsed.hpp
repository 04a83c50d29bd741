// Seconds that have passed, as reports have them.
#pragma once

#include <chrono>

namespace spillway {

/// Returns the seconds from `begin` to now.
[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace spillway
