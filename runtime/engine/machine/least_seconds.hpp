// A stopwatch for calibration, and what comes before its first use.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace spillway::engine {

/// Repeats `work` for half a second: a GPU that was idle takes about as long to its usual clocks.
template <class Work>
void warm_up(const Work& work) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end) work();
}

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
