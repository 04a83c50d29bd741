// Casts of parameters, rounding of gradients and accumulation.
#include <limits>

#include "cpu_adam/gradient_norm.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::conversion_test {
namespace {

using Convert = void (*)(Isa, DType, const float*, void*, std::size_t);

/// fp32 patterns around everything that can go wrong: every exponent, both signs, mantissas at and
/// around the rounding points of bf16 and fp16, and random ones.
std::vector<float> patterns(Random& random) {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 512; ++high) {  // sign and exponent
    for (const std::uint32_t mantissa :
         {0x000000U, 0x000001U, 0x000fffU, 0x001000U, 0x001001U, 0x002fffU, 0x003000U,
          0x003001U, 0x007fffU, 0x008000U, 0x008001U, 0x017fffU, 0x018000U, 0x018001U,
          0x3fffffU, 0x400000U, 0x7fefffU, 0x7ff000U, 0x7f7fffU, 0x7f8000U, 0x7fffffU}) {
      values.push_back(std::bit_cast<float>(high << 23 | mantissa));
    }
    for (int i = 0; i < 16; ++i) {
      values.push_back(
          std::bit_cast<float>(high << 23 | (static_cast<std::uint32_t>(random()) & 0x7fffffU)));
    }
  }
  return values;
}

class Conversion : public ::testing::TestWithParam<Isa> {
 protected:
  static std::vector<std::byte> convert(Convert function, Isa isa, DType dtype,
                                        std::span<const float> values, std::size_t shift = 0) {
    GuardedBytes source(values.size_bytes(), shift % 64);
    GuardedBytes target(values.size() * size_of(dtype), (shift * 7) % 64);
    std::vector<std::byte> copy(values.size() * size_of(dtype));
    if (!values.empty()) {
      std::memcpy(source.as<std::byte>(), values.data(), values.size_bytes());
      function(isa, dtype, source.as<float>(), target.as<void>(), values.size());
      std::memcpy(copy.data(), target.as<std::byte>(), copy.size());
    }
    EXPECT_TRUE(source.guards_intact() && target.guards_intact());
    return copy;
  }

  static std::uint16_t half_at(std::span<const std::byte> bytes, std::size_t i) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    return half;
  }
};

TEST_P(Conversion, OfParametersFollowsTheHousesRulesForEveryKindOfNumber) {
  Random random = seeded_random();
  const std::vector<float> values = patterns(random);
  const auto bf16 = convert(cast_parameters, GetParam(), DType::bf16, values);
  const auto fp16 = convert(cast_parameters, GetParam(), DType::fp16, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(half_at(bf16, i), parameter_to_bf16(values[i])) << values[i];
    ASSERT_EQ(half_at(fp16, i), to_fp16(values[i])) << values[i];
  }
  const auto fp32 = convert(cast_parameters, GetParam(), DType::fp32, values);
  EXPECT_EQ(std::memcmp(fp32.data(), values.data(), fp32.size()), 0);
}

TEST_P(Conversion, OfGradientsIsToNearestEvenForEveryKindOfNumber) {
  Random random = seeded_random();
  const std::vector<float> values = patterns(random);
  const auto bf16 = convert(round_gradient, GetParam(), DType::bf16, values);
  const auto fp16 = convert(round_gradient, GetParam(), DType::fp16, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(half_at(bf16, i), to_bf16(values[i])) << values[i];
    ASSERT_EQ(half_at(fp16, i), to_fp16(values[i])) << values[i];
  }
  const auto fp32 = convert(round_gradient, GetParam(), DType::fp32, values);
  EXPECT_EQ(std::memcmp(fp32.data(), values.data(), fp32.size()), 0);
}

TEST_P(Conversion, BreaksTiesAwayForParametersAndToEvenForGradients) {
  const float tie = std::bit_cast<float>(0x3f808000U);  // half way between 1 and the next bf16
  const float values[] = {tie, -tie};
  const auto parameters = convert(cast_parameters, GetParam(), DType::bf16, values);
  const auto gradients = convert(round_gradient, GetParam(), DType::bf16, values);
  EXPECT_EQ(half_at(parameters, 0), 0x3f81);
  EXPECT_EQ(half_at(parameters, 1), 0xbf81);
  EXPECT_EQ(half_at(gradients, 0), 0x3f80);
  EXPECT_EQ(half_at(gradients, 1), 0xbf80);
}

TEST_P(Conversion, DoesNotDependOnLengthNorAlignment) {
  Random random = seeded_random();
  std::vector<float> values(64);
  for (float& value : values) value = random_float(random, 100, 30);
  for (const Convert function : {Convert{cast_parameters}, Convert{round_gradient}}) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      const auto whole = convert(function, Isa::scalar, dtype, values);
      for (std::size_t count = 0; count <= 64; ++count) {
        for (std::size_t shift = 0; shift < 64; ++shift) {
          const auto part =
              convert(function, GetParam(), dtype, std::span(values).first(count), shift);
          ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin()))
              << count << " elements, shift " << shift;
        }
      }
    }
  }
}

TEST_P(Conversion, AccumulateAddsInFp32ForEveryTailAndMisalignment) {
  Random random = seeded_random();
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const Problem problem = random_problem(random, dtype, 64);
    for (std::size_t count = 0; count <= 64; ++count) {
      for (std::size_t shift = 0; shift < 64; shift += 3) {
        GuardedBytes source(count * size_of(dtype), shift);
        GuardedBytes target(count * 4, 63 - shift);
        if (count > 0) {
          std::memcpy(source.as<std::byte>(), problem.gradient.data(), count * size_of(dtype));
        }
        for (const bool first : {true, false}) {
          accumulate(GetParam(), dtype, source.as<void>(), {target.as<float>(), count}, first);
          for (std::size_t i = 0; i < count; ++i) {
            float got = 0;
            std::memcpy(&got, target.as<std::byte>() + 4 * i, 4);
            const float x = gradient_at(problem.gradient, dtype, i);
            ASSERT_EQ(got, first ? x : x + x);
          }
        }
        EXPECT_TRUE(source.guards_intact() && target.guards_intact());
      }
    }
  }
}

TEST_P(Conversion, AccumulateAddsInOrderAndRoundsEachSum) {
  const std::vector<float> big(20, 0x1p24F), one(20, 1.0F);
  std::vector<float> sum(20, 99.0F);
  accumulate(GetParam(), DType::fp32, big.data(), sum, true);
  accumulate(GetParam(), DType::fp32, one.data(), sum, false);
  accumulate(GetParam(), DType::fp32, one.data(), sum, false);
  EXPECT_EQ(sum, big);  // 2^24 + 1 rounds to 2^24, twice
  accumulate(GetParam(), DType::fp32, one.data(), sum, true);
  accumulate(GetParam(), DType::fp32, one.data(), sum, false);
  accumulate(GetParam(), DType::fp32, big.data(), sum, false);
  EXPECT_EQ(sum, std::vector<float>(20, 0x1p24F + 2));
}

TEST_P(Conversion, AccumulateFlushesDenormalsAndKeepsNonFiniteValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> source(17, 1e-40F);
  source[1] = infinity;
  source[2] = std::numeric_limits<float>::quiet_NaN();
  source[16] = -0.0F;
  std::vector<float> sum(17, 5.0F);
  accumulate(GetParam(), DType::fp32, source.data(), sum, true);
  EXPECT_EQ(sum[0], 0.0F);
  EXPECT_EQ(sum[1], infinity);
  EXPECT_TRUE(std::isnan(sum[2]));
  EXPECT_FALSE(std::signbit(sum[16]));  // 0 + -0
}

std::string isa_name(const ::testing::TestParamInfo<Isa>& info) {
  return std::string(name_of(info.param));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Conversion, ::testing::ValuesIn(runnable_isas()), isa_name);

}  // namespace
}  // namespace spillway::cpu_adam::test::conversion_test
