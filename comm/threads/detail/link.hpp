// Link: one direction of a rank's ideal link, as a model in virtual time. A transfer is not over
// before the models of its two ends say so.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace spillway::comm::detail {

class Link {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes the link for `bytes`, from now or from when it is free, and returns when that is over.
  [[nodiscard]] Clock::time_point reserve(Clock::time_point now, std::size_t bytes,
                                          double gigabytes_per_second) {
    const double nanoseconds = static_cast<double>(bytes) / gigabytes_per_second + fraction_;
    const auto whole = static_cast<std::chrono::nanoseconds::rep>(nanoseconds);
    fraction_ = nanoseconds - static_cast<double>(whole);
    free_at_ = std::max(free_at_, now - kCatchUp) + std::chrono::nanoseconds(whole);
    return free_at_;
  }

 private:
  /// Delay of a waking thread that does not make the link slower.
  static constexpr std::chrono::microseconds kCatchUp{200};

  Clock::time_point free_at_{};
  double fraction_ = 0;  // of a nanosecond, so that small transfers lose nothing
};

}  // namespace spillway::comm::detail
