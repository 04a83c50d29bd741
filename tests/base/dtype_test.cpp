// Conversions over every 16-bit value both ways, every rounding boundary, and against F16C.
#include "runtime/base/dtype.hpp"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <cmath>
#include <limits>

#include "runtime/base/error.hpp"

namespace spillway::dtype_test {
namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// binary16 by its definition, in fp64.
double fp16_value(std::uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(DType, NamesAreReadBackAndOthersRefused) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
    EXPECT_EQ(size_of(dtype), dtype == DType::fp32 ? 4U : 2U);
  }
  for (const std::string_view name : {"", "float16", "BF16", "fp8", "fp32 "}) {
    EXPECT_THROW((void)parse_dtype(name), Error) << name;
  }
}

TEST(Fp16, EveryValueWidensExactlyAndComesBack) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const float wide = from_fp16(half);
    const double value = fp16_value(half);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide)) << i;
      ASSERT_EQ(to_fp16(wide), half | 0x200) << i;  // quiet, payload and sign kept
    } else {
      ASSERT_EQ(static_cast<double>(wide), value) << i;
      ASSERT_EQ(std::signbit(wide), std::signbit(value)) << i;
      ASSERT_EQ(to_fp16(wide), half) << i;
    }
  }
}

// The midpoint of two neighbours is exact in fp32: it goes to the even one, everything next to it
// to the nearer one. With monotonicity between, which the ends show, that is every fp32 value.
TEST(Fp16, EveryBoundaryRoundsToNearestEven) {
  for (std::uint32_t i = 0; i < 0x7c00; ++i) {
    const auto lower = static_cast<std::uint16_t>(i);
    const auto upper = static_cast<std::uint16_t>(i + 1);
    const double low = fp16_value(lower);
    const double high = i + 1 == 0x7c00 ? 65536.0 : fp16_value(upper);  // infinity stands for 2^16
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    const std::uint16_t even = i % 2 == 0 ? lower : upper;
    ASSERT_EQ(to_fp16(middle), even) << i;
    ASSERT_EQ(to_fp16(std::nextafterf(middle, 0)), lower) << i;
    ASSERT_EQ(to_fp16(std::nextafterf(middle, INFINITY)), upper) << i;
    ASSERT_EQ(to_fp16(std::nextafterf(static_cast<float>(high), 0)), upper) << i;
    ASSERT_EQ(to_fp16(-middle), even | 0x8000) << i;
  }
  EXPECT_EQ(to_fp16(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(to_fp16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(to_fp16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(to_fp16(-0.0F), 0x8000);
}

__attribute__((target("f16c"))) std::uint16_t processor_to_fp16(float value) {
  return static_cast<std::uint16_t>(
      _mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT), 0));
}
__attribute__((target("f16c"))) std::uint32_t processor_from_fp16(std::uint16_t half) {
  return static_cast<std::uint32_t>(
      _mm_cvtsi128_si32(_mm_castps_si128(_mm_cvtph_ps(_mm_cvtsi32_si128(half)))));
}

TEST(Fp16, AgreesWithTheProcessorToTheBit) {
  // Every processor with AVX2 has F16C, and clang 14 cannot ask for F16C itself.
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
  // A stride coprime to 2^32 visits every exponent and a spread of mantissas, NaNs included.
  constexpr std::uint32_t kStride = 1021;
  for (std::uint64_t i = 0; i < (1ULL << 32); i += kStride) {
    const float value = float_of(static_cast<std::uint32_t>(i));
    ASSERT_EQ(to_fp16(value), processor_to_fp16(value)) << std::hex << i;
  }
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    ASSERT_EQ(bits_of(from_fp16(half)), processor_from_fp16(half)) << std::hex << i;
  }
}

TEST(Bf16, EveryValueWidensExactlyAndComesBackUnderBothRules) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto brain = static_cast<std::uint16_t>(i);
    const float wide = from_bf16(brain);
    ASSERT_EQ(bits_of(wide), i << 16);
    const bool nan = (i & 0x7fffU) > 0x7f80U;
    const std::uint32_t expected = nan ? i | 0x40U : i;
    ASSERT_EQ(to_bf16(wide), expected) << i;
    ASSERT_EQ(parameter_to_bf16(wide), expected) << i;
  }
}

TEST(Bf16, EveryTieGoesToEvenForGradientsAndAwayFromZeroForParameters) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    if ((i & 0x7fffU) >= 0x7f80U) continue;  // infinity and NaN have no neighbour
    const std::uint32_t below = (i << 16) + 0x7fff;
    const std::uint32_t tie = (i << 16) + 0x8000;
    const std::uint32_t above = (i << 16) + 0x8001;
    ASSERT_EQ(to_bf16(float_of(below)), i);
    ASSERT_EQ(to_bf16(float_of(tie)), i % 2 == 0 ? i : i + 1);
    ASSERT_EQ(to_bf16(float_of(above)), i + 1);
    ASSERT_EQ(parameter_to_bf16(float_of(below)), i);
    ASSERT_EQ(parameter_to_bf16(float_of(tie)), i + 1);
    ASSERT_EQ(parameter_to_bf16(float_of(above)), i + 1);
  }
}

// master = parameter bits + signed 16-bit remainder, for every remainder of a spread of exponents.
TEST(Bf16, AMasterIsItsParameterPlusASignedRemainder) {
  for (std::uint32_t upper = 0; upper < 0x10000; upper += 97) {
    if ((upper & 0x7fffU) >= 0x7f80U) continue;
    const std::uint32_t stride = upper % 5 == 0 ? 1 : 511;
    for (std::uint32_t lower = 0; lower < 0x10000; lower += stride) {
      const std::uint32_t master = upper << 16 | lower;
      const std::uint16_t parameter = parameter_to_bf16(float_of(master));
      const std::int64_t remainder =
          static_cast<std::int64_t>(master) - (static_cast<std::int64_t>(parameter) << 16);
      ASSERT_GE(remainder, -32768);
      ASSERT_LE(remainder, 32767);
    }
  }
}

TEST(Bf16, NaNStaysNaNEvenWhereItsPayloadIsCutOff) {
  for (const std::uint32_t nan : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU}) {
    EXPECT_TRUE(std::isnan(from_bf16(to_bf16(float_of(nan)))));
    EXPECT_TRUE(std::isnan(from_bf16(parameter_to_bf16(float_of(nan)))));
    EXPECT_TRUE(std::isnan(from_fp16(to_fp16(float_of(nan)))));
  }
}

}  // namespace
}  // namespace spillway::dtype_test
