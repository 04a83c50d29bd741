// The 8-bit maps against the tables that define them, and stochastic rounding as a random variable.
#include "cpu_adam/codec.hpp"

#include <set>

#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::codec_test {
namespace {

/// The sorted map, by its definition: midpoints of 2^i (signed) or 2^(i+1) equal cells of [0.1, 1]
/// times 10^(i-6), mirrored if signed, with 0 and 1.
std::vector<double> defined_map(bool is_signed) {
  std::vector<double> map{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int cells = 1 << (is_signed ? i : i + 1);
    for (int j = 0; j < cells; ++j) {
      const double middle = (0.1 + 0.9 * (j + 0.5) / cells) * std::pow(10.0, i - 6);
      map.push_back(middle);
      if (is_signed) map.push_back(-middle);
    }
  }
  std::sort(map.begin(), map.end());
  return map;
}

/// The code of m for place `k` of the sorted map, whose zero is at place 127.
std::int8_t signed_code(std::size_t k) {
  return static_cast<std::int8_t>(127 - static_cast<int>(k));
}

/// Twice 16 units in the last place: to one value and from the other.
constexpr double kMidway = 32 * 0x1p-23;

TEST(DynamicMap, DecodesEveryCodeToItsDefinition) {
  const std::vector<double> with_sign = defined_map(true);
  const std::vector<double> without = defined_map(false);
  ASSERT_EQ(with_sign.size(), 256U);
  ASSERT_EQ(without.size(), 256U);
  for (const float scale : {1.0F, 3.0F, 1e-20F, 1e20F}) {
    for (std::size_t k = 0; k < 256; ++k) {
      const auto code = static_cast<std::uint8_t>(k);
      // Slope times position and offset, each rounded twice, cancel to an eighth: 32 roundings.
      EXPECT_NEAR(decode_signed(signed_code(k), scale) / scale, with_sign[k],
                  2e-6 * std::abs(with_sign[k]));
      EXPECT_NEAR(decode_unsigned(code, scale) / scale, without[k], 2e-6 * without[k]);
    }
    EXPECT_EQ(decode_signed(0, scale), 0.0F);
    EXPECT_EQ(decode_signed(-128, scale), scale);
    EXPECT_EQ(decode_unsigned(0, scale), 0.0F);
    EXPECT_EQ(decode_unsigned(255, scale), scale);
  }
}

TEST(DynamicMap, EncodesToTheNearestCode) {
  Random random = seeded_random();
  const std::vector<double> with_sign = defined_map(true);
  const std::vector<double> without = defined_map(false);
  const auto distance = [](const std::vector<double>& map, double x) {
    const auto above = std::lower_bound(map.begin(), map.end(), x);
    double nearest = 1e9;
    if (above != map.end()) nearest = *above - x;
    if (above != map.begin()) nearest = std::min(nearest, x - *(above - 1));
    return nearest;
  };
  std::set<int> seen_signed, seen_unsigned;
  for (int k = 0; k < 400'000; ++k) {
    const float x = random_float(random, 1, 26);
    const std::int8_t code = encode_signed(x, 1);
    seen_signed.insert(code);
    // Midway values may fall either way: thresholds hold a number in their lowest four bits.
    const double value = with_sign[127 - static_cast<std::size_t>(code)];
    ASSERT_LE(std::abs(value - x), distance(with_sign, x) + kMidway * std::abs(x)) << x;
    const float y = std::abs(x);
    const std::uint8_t plain = encode_unsigned(y, 1);
    seen_unsigned.insert(plain);
    ASSERT_GE(plain, 1);  // the one exception: nothing is coded as zero
    if (y > 0.17e-6F) {
      ASSERT_LE(std::abs(without[plain] - y), distance(without, y) + kMidway * y) << y;
    }
  }
  // All but the largest, which only the largest element of a block gets.
  EXPECT_GE(seen_signed.size(), 255U);
  EXPECT_GE(seen_unsigned.size(), 254U);
}

TEST(DynamicMap, EveryCodeIsItsOwnNearest) {
  for (std::size_t k = 0; k < 256; ++k) {
    const auto code = static_cast<std::uint8_t>(k);
    for (const float scale : {1.0F, 0.37F, 5e-12F}) {
      const std::int8_t with_sign = signed_code(k);
      EXPECT_EQ(encode_signed(decode_signed(with_sign, scale), inverse_scale(scale)), with_sign);
      if (k > 0) {
        EXPECT_EQ(encode_unsigned(decode_unsigned(code, scale), inverse_scale(scale)), code);
      }
    }
  }
}

TEST(DynamicMap, ScaleThatIsNoNumberLeavesNoChoice) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float scale : {0.0F, infinity, std::nanf("")}) {
    EXPECT_EQ(inverse_scale(scale), 0.0F);
    for (const float x : {0.0F, 1.0F, -1.0F, infinity, std::nanf("")}) {
      EXPECT_EQ(encode_signed(x, inverse_scale(scale)), 0);
      EXPECT_EQ(encode_unsigned(x, inverse_scale(scale)), 1);
    }
  }
}

constexpr std::uint32_t kDraws = 1 << 20;

/// Sum of k fair coins: six standard deviations.
void expect_fair(std::uint32_t ones, std::uint32_t draws) {
  EXPECT_NEAR(ones, draws / 2.0, 6 * std::sqrt(draws / 4.0));
}

TEST(StochasticRounding, BitsAreFairAndAgreeWithNoNeighbour) {
  Random random = seeded_random();
  const std::uint64_t seed = random();
  const RoundingKey key = rounding_key(seed, 7, 2, 0);
  const RoundingKey next_step = rounding_key(seed, 8, 2, 0);
  const RoundingKey next_block = rounding_key(seed, 7, 3, 0);
  std::uint32_t ones[32] = {}, like_next[32] = {}, like_step[32] = {}, like_block[32] = {};
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    const std::uint32_t bits = rounding_bits(key, i);
    for (std::uint32_t b = 0; b < 32; ++b) {
      const auto same_bit = [&](std::uint32_t other) { return ~(bits ^ other) >> b & 1U; };
      ones[b] += bits >> b & 1U;
      like_next[b] += same_bit(rounding_bits(key, i + 1));
      like_step[b] += same_bit(rounding_bits(next_step, i));
      like_block[b] += same_bit(rounding_bits(next_block, i));
    }
  }
  for (std::uint32_t b = 0; b < 32; ++b) {
    expect_fair(ones[b], kDraws);
    expect_fair(like_next[b], kDraws);
    expect_fair(like_step[b], kDraws);
    expect_fair(like_block[b], kDraws);
  }
}

TEST(StochasticRounding, MeanIsTheValue) {
  const RoundingKey key = rounding_key(5, 1, 0, 0);
  for (const float value : {1.0F, 1.001F, -3.14159F, 1e-20F, 123456.7F}) {
    double sum = 0;
    for (std::uint32_t i = 0; i < kDraws; ++i) {
      sum += from_bf16(stochastic_bf16(value, rounding_bits(key, i) >> 16));
    }
    // A draw is at most 2^-7 of the value away: its deviation is at most 2^-8 of it.
    EXPECT_NEAR(sum / kDraws, value, 6 * std::abs(value) * 0x1p-8 / std::sqrt(kDraws));
  }
}

TEST(StochasticRounding, KeepsNanAndInfinity) {
  EXPECT_TRUE(std::isnan(from_bf16(stochastic_bf16(std::nanf(""), 0xffff))));
  EXPECT_TRUE(std::isnan(from_bf16(stochastic_bf16(std::bit_cast<float>(0x7fffffffU), 0xffff))));
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_bf16(stochastic_bf16(infinity, 0xffff)), infinity);
}

}  // namespace
}  // namespace spillway::cpu_adam::test::codec_test
