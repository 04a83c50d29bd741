// What calibration measures with.
#include <algorithm>
#include <cmath>
#include <set>

#include "tests/engine/calibration_fixture.hpp"

namespace spillway::engine::calibration_test {
namespace {

TEST_F(CalibrationOfTinyModel, MeasuresProductsOfNumbersThatAreNotZero) {
  std::size_t products = 0;
  ops_->on_gemm = [&](const model::GemmArguments& gemm) {
    ++products;
    // On the host backend, the device's memory can be read.
    for (const model::ConstTensor& operand : {gemm.a, gemm.b}) {
      std::set<std::uint16_t> different;
      for (std::size_t i = 0; i + 1 < std::min<std::size_t>(operand.size(), 400); i += 2) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, operand.address() + i, sizeof bits);
        EXPECT_TRUE(std::isfinite(from_bf16(bits)));
        different.insert(bits);
      }
      EXPECT_GT(different.size(), 50U);  // of 200, with 8 bits of mantissa each
    }
  };
  EXPECT_GT(calibrate_it().gpu_flops, 0);
  EXPECT_GT(products, 0U);
}

TEST_F(CalibrationOfTinyModel, RunsOneLayerForAllThatAreAlike) {
  std::size_t forwards = 0;
  ops_->on_attention = [&] { ++forwards; };
  EXPECT_GT(calibrate_it().gpu_flops, 0);
  EXPECT_EQ(forwards, 3U);  // once to touch what it uses, and twice to be timed
}

}  // namespace
}  // namespace spillway::engine::calibration_test
