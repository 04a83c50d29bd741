// A fixed number of OpenMP threads. oneDNN runs on the same runtime, so both share one pool of
// workers and none spins against the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace spillway::model::host {

/// Sets the calling thread's OpenMP team size for a scope: what oneDNN reads when a primitive is
/// made and when it runs.
class TeamSize {
 public:
  explicit TeamSize(int threads);
  ~TeamSize();
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int previous_;
};

/// Returns the most threads that the OpenMP runtime will give a team (OMP_THREAD_LIMIT).
[[nodiscard]] int largest_team();

/// Runs `function(context, part)` for part 0..parts-1, at most one thread a part. Parts may share a
/// thread where the runtime grants fewer. An exception inside ends the program: kernels throw none.
void run_parts(int parts, void (*function)(void* context, int part), void* context);

/// Range [first, last) of `part` when `count` items are dealt to `parts` in multiples of `unit`.
struct Range {
  std::size_t first = 0;
  std::size_t last = 0;
};
constexpr Range split(std::size_t count, std::size_t unit, int parts, int part) {
  const std::size_t units = (count + unit - 1) / unit;
  const auto n = static_cast<std::size_t>(parts);
  const auto p = static_cast<std::size_t>(part);
  return {std::min(count, units * p / n * unit), std::min(count, units * (p + 1) / n * unit)};
}

/// Deals [0, count) to `threads` contiguous ranges and runs `body(first, last, part)` on each.
/// Bodies write disjoint results, so that the number of threads changes no bit.
template <class Body>
void parallel_for(int threads, std::size_t count, std::size_t unit, Body&& body) {
  struct Context {
    std::remove_reference_t<Body>* body;
    std::size_t count, unit;
    int parts;
  };
  const std::size_t units = (count + unit - 1) / unit;
  if (units == 0) return;
  const int parts =
      static_cast<int>(std::min<std::size_t>(units, static_cast<std::size_t>(threads)));
  Context context{&body, count, unit, parts};
  run_parts(
      parts,
      [](void* opaque, int part) {
        auto& c = *static_cast<Context*>(opaque);
        const Range range = split(c.count, c.unit, c.parts, part);
        if (range.first < range.last) (*c.body)(range.first, range.last, part);
      },
      &context);
}

}  // namespace spillway::model::host
