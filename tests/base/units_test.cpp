#include "runtime/base/units.hpp"

#include <gtest/gtest.h>

#include <type_traits>

#include "runtime/base/error.hpp"

namespace spillway::units_test {
namespace {

// One kind of quantity is never taken for another, nor for a plain number.
static_assert(!std::is_convertible_v<std::uint64_t, Bytes>);
static_assert(!std::is_convertible_v<Bytes, std::uint64_t>);
static_assert(!std::is_constructible_v<Bytes, ElementCount>);
static_assert(!std::is_invocable_v<std::plus<>, Bytes, FileOffset>);
static_assert(sizeof(Bytes) == 8 && std::is_trivially_copyable_v<Bytes>);

TEST(Strong, CalculatesWithQuantitiesOfOneKind) {
  EXPECT_EQ(3_KiB + 1_B, Bytes{3073});
  EXPECT_EQ(3_KiB - 1_KiB, 2_KiB);
  EXPECT_EQ(2 * 3_MiB, 6_MiB);
  EXPECT_EQ(6_MiB / 2, 3_MiB);
  EXPECT_EQ(1_GiB / 1_MiB, 1024U);
  EXPECT_LT(1023_KiB, 1_MiB);
  Bytes sum;
  sum += 5_B;
  sum -= 2_B;
  EXPECT_EQ(sum.value(), 3U);
}

TEST(RoundUp, FindsTheNextMultiple) {
  EXPECT_EQ(round_up(0, 4096), 0U);
  EXPECT_EQ(round_up(1, 4096), 4096U);
  EXPECT_EQ(round_up(4096, 4096), 4096U);
  EXPECT_EQ(round_up(4097, 4096), 8192U);
  EXPECT_EQ(round_up(10, 3), 12U);
}

TEST(ParseBytes, ReadsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4_KiB);
  EXPECT_EQ(parse_bytes("0"), 0_B);
  EXPECT_EQ(parse_bytes("17B"), 17_B);
  EXPECT_EQ(parse_bytes("512MiB"), 512_MiB);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 1536_MiB);
  EXPECT_EQ(parse_bytes("24GB"), Bytes{24'000'000'000});
  EXPECT_EQ(parse_bytes("2TiB"), 2048_GiB);
  EXPECT_EQ(parse_bytes("3K"), 3_KiB);
  EXPECT_EQ(parse_bytes("3KiB"), 3_KiB);
  EXPECT_EQ(parse_bytes("3M"), 3_MiB);
  EXPECT_EQ(parse_bytes("3T"), 3072_GiB);
  EXPECT_EQ(parse_bytes("24KB"), Bytes{24'000});
  EXPECT_EQ(parse_bytes("24MB"), Bytes{24'000'000});
  EXPECT_EQ(parse_bytes("24TB"), Bytes{24'000'000'000'000});
  EXPECT_EQ(parse_bytes("24G"), 24_GiB);
  EXPECT_EQ(parse_bytes("24g"), 24_GiB);
  EXPECT_EQ(parse_bytes("24gb"), Bytes{24'000'000'000});
  EXPECT_EQ(parse_bytes("512mib"), 512_MiB);
  EXPECT_EQ(parse_bytes("9007199254740993"), Bytes{9007199254740993});  // 2^53 + 1: not a double
}

TEST(ParseBytes, RefusesWhatIsNotASizeByName) {
  for (const std::string_view text : {"", "MiB", "12 parsecs", "-1GiB", "1e300GiB", "inf", "nan",
                                      "0x10", "1,5GiB", "5 GiB ", "16777216TiB", "gib"}) {
    try {
      (void)parse_bytes(text);
      ADD_FAILURE() << '"' << text << "\" was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos);
    }
  }
}

TEST(FormatBytes, ShowsThreeDigitsInTheLargestUnitThatFits) {
  EXPECT_EQ(format_bytes(0_B), "0 B");
  EXPECT_EQ(format_bytes(1023_B), "1023 B");
  EXPECT_EQ(format_bytes(1_KiB), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536_MiB), "1.50 GiB");
  EXPECT_EQ(format_bytes(Bytes{(15ULL << 20) + (1ULL << 19)}), "15.5 MiB");
  EXPECT_EQ(format_bytes(512_MiB), "512 MiB");
  EXPECT_EQ(format_bytes(5000_GiB), "4.88 TiB");
  EXPECT_EQ(format_bytes(Bytes{1'048'575}), "1.00 MiB");  // not "1024 KiB"
  EXPECT_EQ(format_bytes(Bytes{10'236}), "10.0 KiB");     // not "10.00 KiB"
  EXPECT_EQ(format_bytes(Bytes{~std::uint64_t{0}}), "16777216 TiB");
}

TEST(FormatBytes, IsReadBackWithinItsDigits) {
  for (std::uint64_t n = 1; n < (1ULL << 50); n = n * 3 + 1) {
    const auto back = static_cast<double>(parse_bytes(format_bytes(Bytes{n})).value());
    EXPECT_NEAR(back, static_cast<double>(n), static_cast<double>(n) * 0.00501) << n;
  }
}

}  // namespace
}  // namespace spillway::units_test
