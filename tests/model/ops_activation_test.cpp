// GELU (both forms) and gated SiLU against fp64, forward and backward.
#include <limits>

#include "tests/model/ops_support.hpp"

namespace spillway::model::ops_activation_test {
namespace {

struct Point {
  double value, slope;
};

Point exact(Activation kind, double x) {
  switch (kind) {
    case Activation::gelu_tanh: {
      const double c = std::sqrt(2 / M_PI);
      const double t = std::tanh(c * (x + 0.044715 * x * x * x));
      return {0.5 * x * (1 + t),
              0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)};
    }
    case Activation::gelu_erf: {
      const double phi = 0.5 * std::erfc(-x / std::sqrt(2.0));
      return {x * phi, phi + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)};
    }
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return {x * s, s + x * s * (1 - s)};
    }
  }
  return {};
}

class ActivationOp : public OpsTest {
 protected:
  /// -12 to 12 in steps, and a few far away.
  Operand points(std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = -12 + 24 * static_cast<float>(i) / static_cast<float>(count);
    }
    if (count > 8) {
      values[1] = 0;
      values[2] = 200;
      values[3] = -200;
      values[5] = 1e-3F;
    }
    return {values, dtype_};
  }
  /// Relative to each value, not to the largest (200); 1e-7 where a value vanishes.
  void expect_each_close(const TestMemory& actual, const std::vector<double>& expected,
                         const char* what) const {
    const std::vector<float> values = decode(actual, dtype_);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double bound = (1.001 * rounding() + 1e-6) * std::fabs(expected[i]) + 1e-7;
      ASSERT_NEAR(static_cast<double>(values[i]), expected[i], bound) << what << " at " << i;
    }
  }
};

TEST_P(ActivationOp, GeluAgreesWithFp64) {
  for (const Activation kind : {Activation::gelu_tanh, Activation::gelu_erf}) {
    for (const std::size_t count : {1U, 16U, 31U, 4001U}) {
      const ActivationShape shape{.kind = kind, .rows = 1, .columns = count};
      const Operand x = points(count);
      const Operand dy = random(count);
      const TestMemory out = elements(count);
      ops_->activation_forward(shape, x.device(), out.device());
      std::vector<double> value(count);
      std::vector<double> gradient(count);
      for (std::size_t i = 0; i < count; ++i) {
        const Point p = exact(kind, x.exact[i]);
        value[i] = p.value;
        gradient[i] = p.slope * dy.exact[i];
      }
      expect_each_close(out, value, "out");
      const TestMemory again = elements(count);
      ops_->activation_backward(shape, {.input = x.device(),
                                        .out_gradient = dy.device(),
                                        .input_gradient = dy.device(),
                                        .out = again.device()});
      expect_each_close(dy.memory, gradient, "gradient in place");
      EXPECT_EQ(std::memcmp(out.data(), again.data(), out.size()), 0) << "the forward bits again";
    }
  }
}

TEST_P(ActivationOp, GatedSiluAgreesWithFp64) {
  for (const std::size_t columns : {1U, 16U, 45U}) {
    constexpr std::size_t kRows = 7;
    const ActivationShape shape{.kind = Activation::silu, .rows = kRows, .columns = columns};
    const Operand x = random(kRows * 2 * columns, 4);
    const Operand dy = random(kRows * columns);
    std::vector<double> value(kRows * columns);
    std::vector<double> gradient(kRows * 2 * columns);
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::size_t gate = i / columns * 2 * columns + i % columns;
      const Point p = exact(Activation::silu, x.exact[gate]);
      value[i] = p.value * x.exact[gate + columns];
      gradient[gate] = dy.exact[i] * x.exact[gate + columns] * p.slope;
      gradient[gate + columns] = dy.exact[i] * p.value;
    }
    const TestMemory out = elements(value.size());
    ops_->activation_forward(shape, x.device(), out.device());
    expect_stored(out, value, 1e-6, "out");
    const TestMemory dx = elements(gradient.size());
    const TestMemory again = elements(value.size());
    ops_->activation_backward(shape, {.input = x.device(),
                                      .out_gradient = dy.device(),
                                      .input_gradient = dx.device(),
                                      .out = again.device()});
    expect_stored(dx, gradient, 1e-6, "gradient");
    EXPECT_EQ(std::memcmp(out.data(), again.data(), out.size()), 0) << "the forward bits again";
  }
}

TEST_P(ActivationOp, PassesNaNAndInfinityOn) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {std::nanf(""), infinity, 1.0F};
  const Operand x(values, dtype_);
  for (const Activation kind : {Activation::gelu_tanh, Activation::gelu_erf}) {
    const TestMemory out = elements(3);
    ops_->activation_forward({.kind = kind, .rows = 1, .columns = 3}, x.device(), out.device());
    const std::vector<float> y = decode(out, dtype_);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_FALSE(std::isfinite(y[1]));
    EXPECT_TRUE(std::isfinite(y[2]));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCase, ActivationOp, testing::ValuesIn(all_cases()), name_of_case);

}  // namespace
}  // namespace spillway::model::ops_activation_test
