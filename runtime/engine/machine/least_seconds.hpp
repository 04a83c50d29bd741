// A stopwatch for calibration.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace spillway::engine {

/// Returns the least of a few timings, after a first call that touches pages and caches:
/// interference only ever adds.
template <class Work>
[[nodiscard]] double least_seconds(const Work& work) {
  constexpr int kRepetitions = 2;
  double least = std::numeric_limits<double>::infinity();
  work();
  for (int i = 0; i < kRepetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    least = std::min(least, taken.count());
  }
  return least;
}

}  // namespace spillway::engine
