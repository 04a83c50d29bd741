#include "runtime/base/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace spillway::random_test {
namespace {

// The known answers that Random123 publishes for philox4x32-10 (kat_vectors), at compile time.
static_assert(philox4x32({0, 0, 0, 0}, 0) ==
              RandomBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox4x32({~0U, ~0U, ~0U, ~0U}, ~std::uint64_t{0}) ==
              RandomBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
              RandomBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST(Random, ABlockDependsOnEveryPartOfItsPlace) {
  std::set<RandomBlock> blocks;
  constexpr std::uint64_t kHigh = std::uint64_t{1} << 32;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, kHigh}) {
    for (const std::uint64_t stream : {std::uint64_t{0}, std::uint64_t{1}, kHigh}) {
      for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1}, kHigh}) {
        blocks.insert(random_block(seed, {.stream = stream, .index = index}));
      }
    }
  }
  EXPECT_EQ(blocks.size(), 27U);
  EXPECT_EQ(random_block(5, {.stream = 6, .index = 7}), philox4x32({7, 0, 6, 0}, 5));
  EXPECT_EQ(random_block(5, {.stream = 0x1234567890abcdef, .index = 0xfedcba0987654321}),
            philox4x32({0x87654321, 0xfedcba09, 0x90abcdef, 0x12345678}, 5));
}

TEST(Random, UniformCoversTheUnitIntervalWithoutItsEnd) {
  EXPECT_EQ(uniform_from(0), 0.0);
  EXPECT_EQ(uniform_from(~std::uint64_t{0}), 1.0 - 0x1p-53);
  EXPECT_EQ(uniform_from(std::uint64_t{1} << 63), 0.5);
}

TEST(Random, UniformBelowIsTheUpperHalfOfTheProduct) {
  __extension__ using Wide = unsigned __int128;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const auto [bits, other] = as_u64(random_block(1, {.stream = 0, .index = i}));
    const std::uint64_t bound = (other >> (i % 64)) | 1;
    const std::uint64_t got = uniform_below(bits, bound);
    ASSERT_EQ(got, static_cast<std::uint64_t>(Wide{bits} * bound >> 64));
    ASSERT_LT(got, bound);
  }
  EXPECT_EQ(uniform_below(~std::uint64_t{0}, ~std::uint64_t{0}), ~std::uint64_t{0} - 1);
}

// Bounds are five standard errors of n samples; the seed is fixed, so the test cannot flicker.
TEST(Random, UniformAndNormalHaveTheirMoments) {
  constexpr int kBlocks = 200'000;
  constexpr double kCount = 2.0 * kBlocks;
  double uniform_sum = 0;
  std::array<double, 5> moments{};
  double product = 0;
  std::vector<int> histogram(16);
  for (int i = 0; i < kBlocks; ++i) {
    const RandomBlock block = random_block(42, {.stream = 7, .index = static_cast<unsigned>(i)});
    for (const std::uint64_t bits : as_u64(block)) {
      uniform_sum += uniform_from(bits);
      ++histogram[uniform_below(bits, 16)];
    }
    const auto [first, second] = normal_pair(block);
    for (const double x : {first, second}) {
      for (std::size_t power = 1; power < moments.size(); ++power) {
        moments[power] += std::pow(x, static_cast<double>(power)) / kCount;
      }
    }
    product += first * second / kBlocks;
  }
  const double error = 5 / std::sqrt(kCount);
  EXPECT_NEAR(uniform_sum / kCount, 0.5, error * std::sqrt(1.0 / 12));
  for (const int count : histogram) EXPECT_NEAR(count, kCount / 16, 5 * std::sqrt(kCount / 16));
  EXPECT_NEAR(moments[1], 0, error);
  EXPECT_NEAR(moments[2], 1, error * std::sqrt(2));
  EXPECT_NEAR(moments[3], 0, error * std::sqrt(15));
  EXPECT_NEAR(moments[4], 3, error * std::sqrt(96));
  EXPECT_NEAR(product, 0, error * std::sqrt(2));
}

TEST(Random, NormalIsFiniteAtTheEndsOfTheUniform) {
  EXPECT_EQ(normal_pair({0, 0, 0, 0})[0], 0.0);
  const auto [largest, zero] = normal_pair({~0U, ~0U, 0, 0});
  EXPECT_NEAR(largest, 8.5717, 1e-4);  // sqrt(-2 log 2^-53)
  EXPECT_EQ(zero, 0.0);
}

}  // namespace
}  // namespace spillway::random_test
