#include "offload/host/detail/link_throttle.hpp"

#include <algorithm>
#include <cmath>

namespace spillway::offload::host {

LinkThrottle::Clock::time_point LinkThrottle::reserve(Clock::time_point ready, std::size_t bytes) {
  const Lock lock(mutex_);
  const double exact = static_cast<double>(bytes) * nanoseconds_per_byte_ + fraction_;
  const double whole = std::floor(exact);
  fraction_ = exact - whole;
  free_at_ = std::max(free_at_, ready) + std::chrono::nanoseconds(static_cast<long long>(whole));
  return free_at_;
}

}  // namespace spillway::offload::host
