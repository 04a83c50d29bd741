// The numbers by which a whole number divides, for searches over ways to cut work. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway {

/// Returns the divisors of `number` in ascending order; none for 0.
[[nodiscard]] inline std::vector<std::uint32_t> divisors_of(std::uint32_t number) {
  std::vector<std::uint32_t> divisors;
  for (std::uint32_t d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return divisors;
}

}  // namespace spillway
