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
#include <bit>
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
constexpr double power_of_two(int exponent) {
  double result = 1;
  for (; exponent > 0; --exponent) result *= 2;
  for (; exponent < 0; ++exponent) result /= 2;
  return result;
}

/// Returns `value` with `number` in its lowest four bits.
constexpr float numbered(double value, std::size_t number) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits & ~0xfU) | static_cast<std::uint32_t>(number));
}

/// `Extra` is 0 for the signed map, 1 for the unsigned one.
template <int Extra>
struct DynamicMap {
  static constexpr double cells(int decade) { return 1 << (decade + Extra); }

  /// Entry k says: from here on the decade is k + 1; the last: the value is 1. For the signed map
  /// entry 0 parts zero from the lowest decade, and everything is one later. The lowest four bits
  /// are k, so that a kernel that has looked up a threshold has the number of those below it too.
  static constexpr std::size_t kThresholdCount = Extra == 0 ? 8 : 7;
  static constexpr std::array<float, kThresholdCount> kThresholds = [] {
    std::array<float, kThresholdCount> thresholds{};
    std::size_t next = 0;
    if (Extra == 0) thresholds[next++] = numbered(0.275e-6, 0);
    // Halfway from the last cell's middle, 1 - 0.45 / n, to the first one's above, 1 + 2.25 / n.
    for (int i = 1; i < kDecades; ++i, ++next) {
      thresholds[next] = numbered(power_of_ten(i - 7) * (1 + 0.9 / cells(i - 1)), next);
    }
    thresholds[next] = numbered(1 - 0.225 / cells(kDecades - 1), next);
    return thresholds;
  }();
  /// The first threshold that is looked up. The signed map's before it, which parts zero from a
  /// decade of one cell, is in that cell's line too.
  static constexpr std::size_t kFirst = Extra == 0 ? 1 : 0;
  /// Below it the code does not depend on y: zero, or (unsigned) the lowest but zero.
  static constexpr float kSmallest = Extra == 0 ? 1e-7F : 0.1625e-6F;

  /// Returns the least slope with which a line through zero is 1 at `threshold`.
  static constexpr float slope_to_one(float threshold) {
    float slope = 1 / threshold;
    while (slope * threshold < 1)
      slope = std::bit_cast<float>(std::bit_cast<std::uint32_t>(slope) + 1);
    return slope;
  }

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
    if (Extra == 0) {
      lines.slope[kZero] = slope_to_one(kThresholds[0]);
      lines.offset[kZero] = 0;
    }
    return lines;
  }();
  static constexpr const std::array<float, 16>& kRankSlope = kLines.slope;
  static constexpr const std::array<float, 16>& kRankOffset = kLines.offset;
  static constexpr const std::array<float, 16>& kRankCap = kLines.cap;

  /// |value| = slope * position + offset, by the lower four bits of the exponent field of
  /// `position`: the rank itself (signed; zero needs a mask), or rank + 1 (unsigned; entry 15 is
  /// zero). Entries that three bits cannot tell apart are the same, or the one with four bits is
  /// zero.
  struct Values {
    std::array<float, 16> slope{}, offset{};
  };
  static constexpr Values kValues = [] {
    Values values{};
    for (int i = 0; i <= kDecades; ++i) {
      // Positions of decade i start at 2^(i + Extra), whose exponent field is that plus 127.
      const auto k = static_cast<std::size_t>(i + Extra + 127) % 16;
      const double first = cells(i);
      if (i < kDecades) {
        values.slope[k] = static_cast<float>(power_of_ten(i - 6) * 0.9 / first);
        values.offset[k] = static_cast<float>(power_of_ten(i - 6) * (0.45 / first - 0.8));
      } else {
        values.offset[k] = 1;
      }
    }
    if (Extra == 0) {
      values.slope[7] = values.slope[15];
      values.offset[7] = values.offset[15];
    }
    return values;
  }();
  static constexpr const std::array<float, 16>& kValueSlope = kValues.slope;
  static constexpr const std::array<float, 16>& kValueOffset = kValues.offset;

  /// Threshold inside each pair of octaves of y, by the second to fifth bit of its exponent field.
  /// Where there is none, a number above all y whose lowest four bits say, as a threshold's do, how
  /// many lie below. For y in [2^-31, 2).
  static constexpr std::array<float, 16> kOctaves = [] {
    std::array<float, 16> octaves{};
    for (std::size_t k = 0; k < 16; ++k) {
      const double end = power_of_two(2 * static_cast<int>(k) - 29);
      const double start = end / 4;
      std::size_t below = kFirst;
      while (below < kThresholdCount && kThresholds[below] < start) ++below;
      const bool inside = below < kThresholdCount && kThresholds[below] < end;
      octaves[k] = inside ? kThresholds[below] : numbered(1e38, below);
    }
    return octaves;
  }();

  /// Numbers ranges of y, each about a decade long and with one threshold inside, by the upper half
  /// of y's bits, which is nearly a logarithm: 425.56 of it are 10^(1 / 1.0009).
  static constexpr std::uint32_t kRangeFactor = 154;
  static constexpr std::uint32_t range_of(float y) {
    return (std::bit_cast<std::uint32_t>(y) >> 16) * kRangeFactor >> 16;
  }
  /// Threshold in each range of y from kSmallest on, by the lower three bits of the range's number.
  static constexpr std::array<float, 8> kRanges = [] {
    std::array<float, 8> ranges{};
    ranges[range_of(kSmallest) % 8] = numbered(1e38, kFirst);
    for (std::size_t k = kFirst; k < kThresholdCount; ++k) {
      ranges[range_of(kThresholds[k]) % 8] = kThresholds[k];
    }
    return ranges;
  }();
  static constexpr bool kOneThresholdARange = [] {
    std::uint32_t number = range_of(kSmallest);
    for (std::size_t k = kFirst; k < kThresholdCount; ++k) {
      if (range_of(kThresholds[k]) != ++number) return false;
    }
    return range_of(1.0F) == number;
  }();
};

}  // namespace detail

using SignedMap = detail::DynamicMap<0>;
using UnsignedMap = detail::DynamicMap<1>;
static_assert(SignedMap::kOneThresholdARange && UnsignedMap::kOneThresholdARange);

}  // namespace spillway::cpu_adam
