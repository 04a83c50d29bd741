// Ops::gemm against an fp64 product: every transposition, output and epilogue, odd shapes.
#include "tests/model/ops_support.hpp"

namespace spillway::model::ops_gemm_test {
namespace {

class Gemm : public OpsTest {
 protected:
  /// Runs `shape` (twice for gradients: overwrite, then add) and compares.
  void check(GemmShape shape) {
    SCOPED_TRACE(testing::Message()
                 << shape.rows << "x" << shape.columns << "x" << shape.inner << " transposes "
                 << shape.transpose_a << shape.transpose_b << " strides " << shape.a_stride << " "
                 << shape.b_stride << " " << shape.out_stride);
    const auto or_dense = [](std::uint64_t stride, std::uint64_t dense) {
      return stride > 0 ? stride : dense;
    };
    const std::size_t lda = or_dense(shape.a_stride, shape.transpose_a ? shape.rows : shape.inner);
    const std::size_t ldb =
        or_dense(shape.b_stride, shape.transpose_b ? shape.inner : shape.columns);
    const std::size_t ldc = or_dense(shape.out_stride, shape.columns);
    const Operand a = random((shape.transpose_a ? shape.inner : shape.rows) * lda);
    const Operand b = random((shape.transpose_b ? shape.columns : shape.inner) * ldb);
    const Operand bias = random(shape.columns);
    const Operand residual = random(shape.rows * ldc);
    // What a strided result leaves alone keeps the value that it is filled with.
    std::vector<double> expected(shape.rows * ldc, kUntouched);
    for (std::size_t i = 0; i < shape.rows; ++i) {
      for (std::size_t j = 0; j < shape.columns; ++j) {
        double sum = 0;
        for (std::size_t p = 0; p < shape.inner; ++p) {
          sum += a.exact[shape.transpose_a ? p * lda + i : i * lda + p] *
                 b.exact[shape.transpose_b ? j * ldb + p : p * ldb + j];
        }
        const std::size_t at = i * ldc + j;
        expected[at] =
            sum + (shape.bias ? bias.exact[j] : 0) + (shape.residual ? residual.exact[at] : 0);
      }
    }
    const GemmPlan plan = ops_->plan_gemm(shape);
    const TestMemory space = workspace(plan.workspace);
    const bool stored = shape.output == GemmOutput::compute;
    const std::vector<float> untouched(expected.size(), kUntouched);
    const TestMemory out = encode(untouched, stored ? dtype_ : DType::fp32);
    GemmArguments arguments{.a = a.device(),
                            .b = b.device(),
                            .bias = shape.bias ? bias.device() : Tensor{},
                            .residual = shape.residual ? residual.device() : Tensor{},
                            .out = out.device(),
                            .first = true,
                            .workspace = space.device()};
    ops_->gemm(plan, arguments);
    if (stored) {
      expect_stored(out, expected, kTolerance, "product");
      return;
    }
    expect_floats(out, expected, kTolerance, "product");
    if (shape.output != GemmOutput::gradient) return;
    arguments.first = false;
    ops_->gemm(plan, arguments);
    ASSERT_EQ(ldc, shape.columns) << "the value left alone would double below";
    for (double& value : expected) value *= 2;
    expect_floats(out, expected, kTolerance, "sum of two products");
  }

  static constexpr float kUntouched = 7;
  /// fp32 sums of up to 300 products: 300 * 2^-24 at worst, relative to sums that cancel.
  static constexpr double kTolerance = 2e-6;
};

TEST_P(Gemm, AgreesWithFp64ForEveryTransposition) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      check({.rows = 64,
             .columns = 48,
             .inner = 96,
             .transpose_a = transpose_a,
             .transpose_b = transpose_b});
      check({.rows = 37,
             .columns = 53,
             .inner = 101,
             .transpose_a = transpose_a,
             .transpose_b = transpose_b});
      check({.rows = 7,
             .columns = 300,
             .inner = 19,
             .transpose_a = transpose_a,
             .transpose_b = transpose_b,
             .output = GemmOutput::gradient});
      check({.rows = 129,
             .columns = 65,
             .inner = 300,
             .transpose_a = transpose_a,
             .transpose_b = transpose_b,
             .output = GemmOutput::fp32});
    }
  }
}

TEST_P(Gemm, AddsBiasAndResidual) {
  for (const bool transpose_b : {false, true}) {
    check({.rows = 33, .columns = 47, .inner = 29, .transpose_b = transpose_b, .bias = true});
    check({.rows = 64, .columns = 64, .inner = 64, .transpose_b = transpose_b, .residual = true});
    check({.rows = 130,
           .columns = 41,
           .inner = 77,
           .transpose_b = transpose_b,
           .bias = true,
           .residual = true});
  }
}

TEST_P(Gemm, WorksOnColumnsOfWiderMatrices) {
  for (const bool bias : {false, true}) {
    check({.rows = 33,
           .columns = 24,
           .inner = 29,
           .transpose_b = true,
           .bias = bias,
           .residual = bias,
           .out_stride = 61});
  }
  check({.rows = 40, .columns = 32, .inner = 17, .a_stride = 50});
  check({.rows = 40, .columns = 32, .inner = 17, .transpose_b = true, .b_stride = 19});
  check({.rows = 9, .columns = 32, .inner = 40, .b_stride = 33});
  check({.rows = 21, .columns = 16, .inner = 64, .output = GemmOutput::fp32, .a_stride = 100});
  for (const bool transpose_a : {false, true}) {
    check({.rows = 21,
           .columns = 48,
           .inner = 33,
           .transpose_a = transpose_a,
           .output = GemmOutput::gradient,
           .a_stride = 72});
  }
}

TEST_P(Gemm, TakesOperandsThatStartAnywhere) {
  // One element into their memory each: what a tensor of odd size leaves to the next of a block.
  const GemmShape shape{.rows = 16, .columns = 24, .inner = 32, .bias = true, .residual = true};
  const auto shifted = [&](const TestMemory& memory) {
    return memory.device().subspan(size_of(dtype_), memory.size() - size_of(dtype_));
  };
  const Operand a = random(16 * 32 + 1);
  const Operand b = random(32 * 24 + 1);
  const Operand bias = random(24 + 1);
  const Operand residual = random(16 * 24 + 1);
  const TestMemory there = elements(16 * 24 + 1);
  const GemmPlan plan = ops_->plan_gemm(shape);
  const TestMemory space = workspace(plan.workspace);
  ops_->gemm(plan, {.a = shifted(a.memory),
                    .b = shifted(b.memory),
                    .bias = shifted(bias.memory),
                    .residual = shifted(residual.memory),
                    .out = shifted(there),
                    .first = true,
                    .workspace = space.device()});
  // A library may round once more, before it adds the bias: no further than the terms are large.
  const double once_more = device_tolerance(dtype_) > 0 ? rounding() : 0;
  const std::vector<float> out = decode(there, dtype_);
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 24; ++j) {
      const std::size_t at = 1 + i * 24 + j;
      double expected = bias.exact[1 + j] + residual.exact[at];
      double terms = std::fabs(bias.exact[1 + j]) + std::fabs(residual.exact[at]);
      for (std::size_t p = 0; p < 32; ++p) {
        const double product = a.exact[1 + i * 32 + p] * b.exact[1 + p * 24 + j];
        expected += product;
        terms += std::fabs(product);
      }
      ASSERT_NEAR(static_cast<double>(out[at]), expected,
                  1.001 * rounding() * std::fabs(expected) + (once_more + kTolerance) * terms)
          << at;
    }
  }
}

TEST_P(Gemm, HandlesSizesOfOne) {
  check({.rows = 1, .columns = 1, .inner = 1});
  check({.rows = 1, .columns = 17, .inner = 5, .transpose_b = true, .bias = true});
  check(
      {.rows = 17, .columns = 1, .inner = 3, .transpose_a = true, .output = GemmOutput::gradient});
}

TEST_P(Gemm, PlansEqualShapesOnce) {
  const GemmShape shape{.rows = 8, .columns = 8, .inner = 8};
  const GemmPlan first = ops_->plan_gemm(shape);
  const GemmPlan again = ops_->plan_gemm(shape);
  EXPECT_EQ(first.index, again.index);
  EXPECT_EQ(first.workspace, again.workspace);
}

INSTANTIATE_TEST_SUITE_P(EveryCase, Gemm, testing::ValuesIn(all_cases()), name_of_case);

}  // namespace
}  // namespace spillway::model::ops_gemm_test
