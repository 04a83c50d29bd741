#include "runtime/base/stagger.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace spillway::stagger_test {
namespace {

constexpr std::uint64_t kHuge = 2'097'152;
constexpr std::uint64_t kLeast = 16'384;

/// How far apart two places of a huge page are, counted around it.
std::uint64_t around(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t one_way = (b % kHuge + kHuge - a % kHuge) % kHuge;
  return std::min(one_way, kHuge - one_way);
}

TEST(Stagger, KeepsArraysApartInEverySizeAndWastesAsLittleAsThatTakes) {
  for (std::uint64_t leaves = 1; leaves <= 4096; ++leaves) {
    const std::array<std::uint64_t, 3> sizes{leaves * 8192, leaves * 16384, leaves * 16384};
    const auto arrays = stagger(sizes);
    EXPECT_EQ(arrays.starts[0], 0U);
    EXPECT_EQ(arrays.end, arrays.starts[2] + sizes[2]);
    for (std::size_t k = 1; k < sizes.size(); ++k) {
      const std::uint64_t earliest = arrays.starts[k - 1] + sizes[k - 1];
      ASSERT_GE(arrays.starts[k], earliest);
      ASSERT_EQ(arrays.starts[k] % 4096, 0U);
      for (std::size_t before = 0; before < k; ++before) {
        if (sizes[before] < kLeast) continue;  // a pass leaves it behind within a stagger
        ASSERT_GE(around(arrays.starts[before], arrays.starts[k]), kLeast) << leaves;
      }
      // At worst it steps over the zones of both arrays before it.
      ASSERT_LT(arrays.starts[k] - earliest, 4 * kLeast) << leaves;
    }
  }
}

TEST(Stagger, LeavesNoGapWhereArraysAreApartByThemselves) {
  const auto small = stagger(std::array<std::uint64_t, 3>{500'000, 500'032, 500'000});
  EXPECT_EQ(small.starts, (std::array<std::uint64_t, 3>{0, 500'032, 1'000'064}));
  const auto odd = stagger(std::array<std::uint64_t, 2>{kHuge + kLeast, 4096});
  EXPECT_EQ(odd.starts[1], kHuge + kLeast);
  const auto none = stagger(std::array<std::uint64_t, 2>{kHuge, 0});
  EXPECT_EQ(none.end, kHuge);
}

TEST(Stagger, SaysOfTwoAddressesWhetherTheyAreApart) {
  EXPECT_FALSE(staggered(kHuge, 9 * kHuge));
  EXPECT_FALSE(staggered(0, 3 * kHuge + kLeast - 1));
  EXPECT_FALSE(staggered(0, 3 * kHuge - kLeast + 1));
  EXPECT_TRUE(staggered(0, 3 * kHuge + kLeast));
  EXPECT_TRUE(staggered(0, 3 * kHuge - kLeast));
  EXPECT_TRUE(staggered(4096, 8192));  // the first is a page long
}

}  // namespace
}  // namespace spillway::stagger_test
