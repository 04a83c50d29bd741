// The middle of what was measured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::bench {

/// Returns the middle value; the upper of two. Throws `Error{invalid_argument}` if there is none.
[[nodiscard]] inline double median_of(std::vector<double> values) {
  check(!values.empty(), ErrorCode::invalid_argument,
        "nothing was measured: let the benchmark run at least one step or repetition");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace spillway::bench
