// The two dynamic maps of 8-bit optimizer state (Dettmers 2016; Dettmers et al. 2022): 256 values
// of [-1, 1] or [0, 1], seven decades of which each has twice the values of the one below, evenly
// spaced inside: the midpoints of 2^i cells (signed) or 2^(i+1) (unsigned) of [0.1, 1] 10^(i-6),
// i = 0..6, and 0 and 1.
//
// So neither direction needs a table of 256. Decoding: counted from the right start, the number of
// a code has the decade as its exponent, and within a decade the value is linear in it. Encoding to
// nearest: thresholds tell the decade, and the rank is linear within it, but for the highest cell
// of each, which also takes what lies above the decade and nearer to it than to the next
// (`kRankCap`).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace spillway::cpu_adam {

namespace detail {
constexpr int kDecades = 7;
constexpr double power_of_ten(int exponent) {
  double result = 1;
  for (; exponent > 0; --exponent) result *= 10;
  for (; exponent < 0; ++exponent) result /= 10;
  return result;
}

/// `Extra` is 0 for the signed map, 1 for the unsigned one.
template <int Extra>
struct DynamicMap {
  static constexpr double cells(int decade) { return 1 << (decade + Extra); }

  /// Entry k: from here on the decade is k + 1; the last: the value is 1. For the signed map entry
  /// 0 parts zero from the lowest decade, and everything is one later.
  static constexpr std::size_t kThresholdCount = Extra == 0 ? 8 : 7;
  static constexpr std::array<float, kThresholdCount> kThresholds = [] {
    std::array<float, kThresholdCount> thresholds{};
    std::size_t next = 0;
    if (Extra == 0) thresholds[next++] = 0.275e-6F;
    // Halfway from the last cell's middle, 1 - 0.45 / n, to the first one's above, 1 + 2.25 / n.
    for (int i = 1; i < kDecades; ++i) {
      thresholds[next++] = static_cast<float>(power_of_ten(i - 7) * (1 + 0.9 / cells(i - 1)));
    }
    thresholds[next] = static_cast<float>(1 - 0.225 / cells(kDecades - 1));
    return thresholds;
  }();
  /// Below it the code does not depend on y: zero, or (unsigned) the lowest but zero.
  static constexpr float kSmallest = Extra == 0 ? 1e-9F : 0.1625e-6F;

  /// By the number of thresholds passed: rank = floor(min(slope * y + offset, cap)).
  struct Lines {
    std::array<float, 16> slope{}, offset{}, cap{};
  };
  static constexpr Lines kLines = [] {
    Lines lines{};
    constexpr std::size_t kZero = Extra == 0 ? 1 : 0;
    for (int i = 0; i < kDecades; ++i) {
      const auto k = static_cast<std::size_t>(i) + kZero;
      const double n = cells(i);
      const double first = n - Extra;  // the rank of the lowest cell
      lines.slope[k] = static_cast<float>(power_of_ten(6 - i) * n / 0.9);
      lines.offset[k] = static_cast<float>(first - n / 9);
      lines.cap[k] = static_cast<float>(first + n - 1);
    }
    lines.offset[kZero + 7] = lines.cap[kZero + 7] = Extra == 0 ? 128 : 255;
    return lines;
  }();
  static constexpr const std::array<float, 16>& kRankSlope = kLines.slope;
  static constexpr const std::array<float, 16>& kRankOffset = kLines.offset;
  static constexpr const std::array<float, 16>& kRankCap = kLines.cap;

  /// value = slope * position + offset, by the lower four bits of the exponent field of `position`,
  /// which is 2 rank + 1 (signed) or rank + 1 (unsigned): 15 for zero, k for decade k, 7 for one.
  struct Values {
    std::array<float, 16> slope{}, offset{};
  };
  static constexpr Values kValues = [] {
    Values values{};
    for (int i = 0; i < kDecades; ++i) {
      const auto k = static_cast<std::size_t>(i);
      const double octave = 2 << i;
      const double half_cell = Extra == 0 ? 0 : 0.45 / octave;
      values.slope[k] = static_cast<float>(power_of_ten(i - 6) * 0.9 / octave);
      values.offset[k] = static_cast<float>(power_of_ten(i - 6) * (half_cell - 0.8));
    }
    values.offset[7] = 1;
    return values;
  }();
  static constexpr const std::array<float, 16>& kValueSlope = kValues.slope;
  static constexpr const std::array<float, 16>& kValueOffset = kValues.offset;

  /// The threshold inside each octave of y, by the lower five bits of its exponent field (infinity
  /// where there is none), and how many lie below the octave. For y in [2^-31, 2).
  struct Octaves {
    std::array<float, 32> threshold{};
    std::array<std::int32_t, 32> passed{};
  };
  static constexpr Octaves kOctaves = [] {
    Octaves octaves{};
    for (std::size_t k = 0; k < 32; ++k) {
      double start = 1;
      for (std::size_t power = k; power < 31; ++power) start /= 2;
      octaves.threshold[k] = 3e38F;
      for (const float threshold : kThresholds) {
        if (threshold < start) ++octaves.passed[k];
        if (threshold >= start && threshold < 2 * start) octaves.threshold[k] = threshold;
      }
    }
    return octaves;
  }();
};

}  // namespace detail

using SignedMap = detail::DynamicMap<0>;
using UnsignedMap = detail::DynamicMap<1>;

}  // namespace spillway::cpu_adam
