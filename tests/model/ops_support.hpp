// What the tests of single operations share: random operands whose exact values are known, and
// comparison with an fp64 reference.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/model/model_harness.hpp"
#include "tests/model/ops_cases.hpp"

namespace spillway::model {

/// Seeded from SPILLWAY_TEST_SEED if set; the seed is printed with every failure.
class Random {
 public:
  Random() : engine_(seed()) {}
  static std::uint32_t seed() {
    const char* text = std::getenv("SPILLWAY_TEST_SEED");
    return text != nullptr ? static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10))
                           : 20240611U;
  }
  float normal(float scale) { return scale * std::normal_distribution<float>()(engine_); }
  std::int32_t below(std::uint32_t limit) {
    return static_cast<std::int32_t>(
        std::uniform_int_distribution<std::uint32_t>(0, limit - 1)(engine_));
  }

 private:
  std::mt19937 engine_;
};

/// Elements of a dtype in "device" memory, with their exact values beside.
struct Operand {
  TestMemory memory;
  std::vector<double> exact;

  Operand(std::span<const float> values, DType dtype) : memory(encode(values, dtype)) {
    for (const float value : decode(memory, dtype)) exact.push_back(static_cast<double>(value));
  }
  [[nodiscard]] Tensor device() const { return memory.device(); }
};

inline std::string name_of_case(const testing::TestParamInfo<OpsCase>& info) {
  return info.param.kernels + "_" + std::string(name_of(info.param.dtype)) +
         (info.param.widen ? "_widened" : "");
}

class OpsTest : public testing::TestWithParam<OpsCase> {
 protected:
  OpsTest() : dtype_(GetParam().dtype) {}
  void SetUp() override {
    if (const std::string reason = reason_to_skip(); !reason.empty()) GTEST_SKIP() << reason;
    ops_ = make_case_ops(GetParam());
    RecordProperty("seed", std::to_string(Random::seed()));
  }

  Operand random(std::size_t count, float scale = 1, float offset = 0) {
    std::vector<float> values(count);
    for (float& value : values) value = offset + random_.normal(scale);
    return {values, dtype_};
  }
  [[nodiscard]] TestMemory elements(std::size_t count) const {
    return TestMemory(count * size_of(dtype_));
  }
  static TestMemory floats(std::size_t count) { return TestMemory(count * sizeof(float)); }
  [[nodiscard]] TestMemory workspace(Bytes size) const { return TestMemory(size.value()); }

  /// Half a unit in the last place of what is stored: rounding of the result itself.
  [[nodiscard]] double rounding() const {
    if (dtype_ == DType::bf16) return 0x1p-8;
    return dtype_ == DType::fp16 ? 0x1p-11 : 0x1p-24;
  }
  /// |actual - expected| <= rounding * |expected| + tolerance * max(|expected|..., floor_), each.
  void expect_close(const std::vector<float>& actual, const std::vector<double>& expected,
                    double stored_rounding, double tolerance, const char* what) const {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    tolerance = std::max(tolerance, device_tolerance(dtype_));
    double largest = floor_;
    for (const double value : expected) largest = std::max(largest, std::fabs(value));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double bound = 1.001 * stored_rounding * std::fabs(expected[i]) + tolerance * largest;
      ASSERT_NEAR(static_cast<double>(actual[i]), expected[i], bound)
          << what << " at " << i << " of " << expected.size() << ", seed " << Random::seed();
    }
  }
  void expect_stored(const TestMemory& actual, const std::vector<double>& expected,
                     double tolerance, const char* what) const {
    // Results that round to 16 bits below fp16's normal range are a unit of 2^-25 off at most.
    const double subnormal = dtype_ == DType::fp16 ? 1e-7 : 0;
    expect_close(decode(actual, dtype_), expected, rounding(), tolerance + subnormal, what);
  }
  void expect_floats(const TestMemory& actual, const std::vector<double>& expected,
                     double tolerance, const char* what) const {
    expect_close(decode(actual, DType::fp32), expected, 0, tolerance, what);
  }

  Random random_;
  double floor_ = 0;  ///< size of the terms where the exact sum may vanish
  DType dtype_;
  std::unique_ptr<Ops> ops_;
};

}  // namespace spillway::model
