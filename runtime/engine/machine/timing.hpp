// Stopwatches for calibration, and what comes before their first use.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "runtime/plan/machine_profile.hpp"

namespace spillway::engine {

/// Repeats `work` for half a second: a GPU that was idle takes about as long to its usual clocks.
template <class Work>
void warm_up(const Work& work) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end) work();
}

/// Quartiles of the seconds that something took.
struct Seconds {
  double fast = 0;
  double usual = 0;  ///< median
  double slow = 0;

  Seconds& operator+=(const Seconds& other) {
    fast += other.fast;
    usual += other.usual;
    slow += other.slow;
    return *this;
  }
  Seconds& operator*=(double factor) {
    fast *= factor;
    usual *= factor;
    slow *= factor;
    return *this;
  }
  [[nodiscard]] plan::Pace pace() const { return {.fast = usual / fast, .slow = usual / slow}; }
};

/// Times `work`: three times where each takes long, else as often as `at_least` allows, since other
/// processes take a core for milliseconds.
template <class Work>
[[nodiscard]] Seconds timed_warm(const Work& work, std::chrono::milliseconds at_least) {
  constexpr std::size_t kFewest = 3;
  std::vector<double> each;
  std::chrono::duration<double> all{};
  while (each.size() < kFewest || all < at_least) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    each.push_back(taken.count());
    all += taken;
  }
  std::ranges::sort(each);
  const std::size_t last = each.size() - 1;
  return {.fast = each[last / 4], .usual = each[last / 2], .slow = each[last - last / 4]};
}

/// Times `work` after a first call that touches pages and caches.
template <class Work>
[[nodiscard]] Seconds timed(const Work& work,
                            std::chrono::milliseconds at_least = std::chrono::milliseconds(10)) {
  work();
  return timed_warm(work, at_least);
}

/// Times `work` of several threads that are new. It takes the system some tens of milliseconds to
/// give each a core of its own. Before, they may take turns on one, and spin on it for each other:
/// four times as slow. What takes a second or longer is done once.
template <class Work>
[[nodiscard]] Seconds timed_team(const Work& work) {
  using std::chrono::milliseconds;
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> first = std::chrono::steady_clock::now() - begin;
  if (first >= milliseconds(1000)) return {first.count(), first.count(), first.count()};
  while (std::chrono::steady_clock::now() < begin + milliseconds(20)) work();
  return timed_warm(work, milliseconds(40));
}

}  // namespace spillway::engine
