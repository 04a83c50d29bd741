#include "cpu_adam/calibration.hpp"

#include <algorithm>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::cpu_adam {

std::size_t calibrate_prefetch(const std::function<double(std::size_t)>& seconds,
                               std::size_t rounds) {
  SPILLWAY_ASSERT(rounds > 0);
  constexpr double kGain = 0.97;
  std::array<std::vector<double>, kPrefetchDistances.size()> times;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t k = 0; k < times.size(); ++k) {
      times[k].push_back(seconds(kPrefetchDistances[k]));
    }
  }
  std::array<double, kPrefetchDistances.size()> medians{};
  for (std::size_t k = 0; k < times.size(); ++k) {
    const auto middle = times[k].begin() + static_cast<std::ptrdiff_t>(rounds / 2);
    std::nth_element(times[k].begin(), middle, times[k].end());
    medians[k] = *middle;
  }
  const auto best = std::min_element(medians.begin(), medians.end());
  if (*best > kGain * medians.front()) return 0;
  return kPrefetchDistances[static_cast<std::size_t>(best - medians.begin())];
}

}  // namespace spillway::cpu_adam
