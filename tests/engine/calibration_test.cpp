// What calibration measures with.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <variant>

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

// One token everywhere would make the gradient of the embedding one long sum.
TEST_F(CalibrationOfTinyModel, MeasuresTheEmbeddingOfManyTokens) {
  std::size_t gradients = 0;
  ops_->on_row = [&](const model::RowOp& op) {
    const auto* const embedding = std::get_if<model::EmbeddingBackwardOp>(&op);
    if (embedding == nullptr) return;
    ++gradients;
    const auto& tokens = embedding->tokens;
    const std::set<std::int32_t> different(tokens.address(), tokens.address() + tokens.size());
    EXPECT_GE(*different.begin(), 0);
    EXPECT_LT(*different.rbegin(), static_cast<std::int32_t>(config_.vocab_size));
    EXPECT_GT(2 * different.size(), std::min<std::size_t>(tokens.size(), config_.vocab_size));
  };
  EXPECT_GT(calibrate_it().gpu_flops, 0);
  EXPECT_GT(gradients, 0U);
}

TEST_F(CalibrationOfTinyModel, RunsOneLayerForAllThatAreAlike) {
  std::size_t forwards = 0;
  ops_->on_attention = [&] {
    ++forwards;
    std::this_thread::sleep_for(std::chrono::milliseconds(25));  // what takes long is not repeated
  };
  EXPECT_GT(calibrate_it().gpu_flops, 0);
  EXPECT_EQ(forwards, 4U);  // once to touch what it uses, and three times to be timed
}

class CalibrationOfALargeHead : public CalibrationOfTinyModel {
 protected:
  CalibrationOfALargeHead()
      : CalibrationOfTinyModel([] {
          model::ModelConfig config = tiny_llama(2);
          config.vocab_size = 4096;
          return config;
        }()) {}
};

TEST_F(CalibrationOfALargeHead, TimesOneSlowLayerOnceAndNothingElse) {
  std::size_t forwards = 0;
  int others = 0;
  ops_->on_attention = [&] {
    ++forwards;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  ops_->on_row = [&](const model::RowOp& op) {
    others += std::holds_alternative<model::EmbeddingBackwardOp>(op) ? 1 : 0;
  };
  const double flops = calibrate_it().gpu_flops;
  EXPECT_EQ(forwards, 1U);
  EXPECT_EQ(others, 0);
  // Two layers take a second each, and what is not timed has their pace: 2 FLOPs a weight forward,
  // 4 backward. The bound leaves room for attention and norms, which are not counted here.
  const double tokens = options_.micro_batch * options_.context;
  const double head = 6.0 * config_.width * config_.vocab_size * tokens;
  const double all = plan::micro_batch_flops(make_workload(config_, *model_.transformer, options_));
  EXPECT_NEAR(flops, (all - head) / 2, 0.1 * flops);
}

}  // namespace
}  // namespace spillway::engine::calibration_test
