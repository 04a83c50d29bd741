// LayerNorm, RMSNorm and the bias gradient against fp64 definitions.
#include "tests/model/ops_support.hpp"

namespace spillway::model::ops_norm_test {
namespace {

struct Reference {
  std::vector<double> out, dx, dw, db;
};

/// Rows of `s.width` elements, contiguous.
Reference reference(const NormShape& s, const std::vector<double>& x, const std::vector<double>& w,
                    const std::vector<double>& b, const std::vector<double>& dy) {
  const std::size_t n = s.width;
  const auto width = static_cast<double>(n);
  Reference r{std::vector<double>(x.size()), std::vector<double>(x.size()), std::vector<double>(n),
              std::vector<double>(n)};
  for (std::size_t first = 0; first < x.size(); first += n) {
    double mean = 0;
    for (std::size_t i = 0; i < n; ++i) mean += x[first + i] / width;
    if (s.kind == NormKind::rms) mean = 0;
    double variance = 0;
    for (std::size_t i = 0; i < n; ++i) variance += std::pow(x[first + i] - mean, 2) / width;
    const double inverse = 1 / std::sqrt(variance + static_cast<double>(s.eps));
    double sum = 0;
    double product = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double normal = (x[first + i] - mean) * inverse;
      r.out[first + i] = normal * w[i] + b[i];
      r.dw[i] += dy[first + i] * normal;
      r.db[i] += dy[first + i];
      sum += dy[first + i] * w[i] / width;
      product += dy[first + i] * w[i] * normal / width;
    }
    if (s.kind == NormKind::rms) sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double normal = (x[first + i] - mean) * inverse;
      r.dx[first + i] = inverse * (dy[first + i] * w[i] - sum - normal * product);
    }
  }
  return r;
}

class Norm : public OpsTest {
 protected:
  void check(NormShape s, bool has_bias) {
    SCOPED_TRACE(testing::Message() << s.tokens << "x" << s.heads << " rows of " << s.width);
    const std::size_t count = s.rows() * s.width;
    const std::uint64_t stride = s.heads * s.width;
    const Operand x = random(count, 2, 1);
    const Operand w = random(s.width, 0.3F, 1);
    const Operand b = has_bias ? random(s.width) : Operand(std::vector<float>(s.width), dtype_);
    const Operand dy = random(count);
    const Operand residual = random(count);
    const Reference expected = reference(s, x.exact, w.exact, b.exact, dy.exact);
    const TestMemory out = elements(count);
    const TestMemory statistics = floats(2 * s.rows());
    ops_->norm_forward(s, {.input = {x.device(), stride},
                           .weight = w.device(),
                           .bias = has_bias ? b.device() : Tensor{},
                           .out = {out.device(), stride},
                           .statistics = statistics.device().as<float>()});
    expect_stored(out, expected.out, 1e-6, "out");
    const TestMemory dx = elements(count);
    const TestMemory dw = floats(s.width);
    const TestMemory db = floats(s.width);
    const TestMemory space = workspace(ops_->reduction_workspace(s.tokens, 2 * s.width));
    NormBackwardArguments arguments{
        .input = {x.device(), stride},
        .weight = w.device(),
        .out_gradient = {dy.device(), stride},
        .statistics = statistics.device().as<const float>(),
        .residual_gradient = {},
        .input_gradient = {dx.device(), stride},
        .weight_gradient = {dw.device().as<float>(), true},
        .bias_gradient = has_bias ? Gradient{db.device().as<float>(), true} : Gradient{},
        .workspace = space.device()};
    ops_->norm_backward(s, arguments);
    expect_stored(dx, expected.dx, 2e-6, "input gradient");
    expect_floats(dw, expected.dw, 2e-6, "weight gradient");
    if (has_bias) expect_floats(db, expected.db, 2e-6, "bias gradient");
    check_adding(s, arguments, expected, residual, dw, has_bias ? &db : nullptr);
  }

  /// In place over the residual, and added to what the gradients hold.
  void check_adding(const NormShape& s, NormBackwardArguments arguments, Reference expected,
                    const Operand& residual, const TestMemory& dw, const TestMemory* db) {
    const std::uint64_t stride = s.heads * s.width;
    const Tensor place = residual.device();
    arguments.residual_gradient = {place, stride};
    arguments.input_gradient = {place, stride};
    arguments.weight_gradient.first = false;
    arguments.bias_gradient.first = false;
    ops_->norm_backward(s, arguments);
    for (std::size_t i = 0; i < expected.dx.size(); ++i) expected.dx[i] += residual.exact[i];
    for (double& value : expected.dw) value *= 2;
    for (double& value : expected.db) value *= 2;
    expect_stored(residual.memory, expected.dx, 2e-6, "input gradient with residual");
    expect_floats(dw, expected.dw, 2e-6, "weight gradients");
    if (db != nullptr) expect_floats(*db, expected.db, 2e-6, "biases");
  }
};

TEST_P(Norm, LayerNormAgreesWithFp64) {
  for (const std::uint64_t width : {1U, 5U, 16U, 33U, 384U}) {
    check({.kind = NormKind::layer, .tokens = 37, .width = width, .eps = 1e-2F}, true);
  }
  check({.kind = NormKind::layer, .tokens = 300, .width = 48, .eps = 1e-5F}, true);
  check({.kind = NormKind::layer, .tokens = 3, .width = 1100, .eps = 1e-5F}, true);
}

TEST_P(Norm, RmsNormAgreesWithFp64) {
  for (const std::uint64_t width : {1U, 15U, 17U, 128U}) {
    check({.kind = NormKind::rms, .tokens = 41, .width = width, .eps = 1e-2F}, false);
  }
  check({.kind = NormKind::rms, .tokens = 4100, .width = 20, .eps = 1e-6F}, false);
  check({.kind = NormKind::rms, .tokens = 3, .width = 1100, .eps = 1e-6F}, false);
}

TEST_P(Norm, NormalizesEachHeadOfAToken) {
  check({.kind = NormKind::rms, .tokens = 70, .heads = 3, .width = 24, .eps = 1e-6F}, false);
}

TEST_P(Norm, ReadsAndWritesHeadsInsideWiderRows) {
  const NormShape s{.kind = NormKind::rms, .tokens = 6, .heads = 2, .width = 20, .eps = 1e-6F};
  constexpr std::uint64_t kIn = 61;
  constexpr std::uint64_t kOut = 40;
  const Operand x = random(6 * kIn);
  const Operand w = random(20);
  std::vector<double> rows;
  for (std::size_t t = 0; t < 6; ++t) {
    rows.insert(rows.end(), x.exact.begin() + static_cast<std::ptrdiff_t>(t * kIn),
                x.exact.begin() + static_cast<std::ptrdiff_t>(t * kIn + 40));
  }
  const std::vector<double> zeros(20);
  const Reference expected = reference(s, rows, w.exact, zeros, rows);
  const TestMemory out = elements(6 * kOut);
  const TestMemory statistics = floats(24);
  ops_->norm_forward(s, {.input = {x.device(), kIn},
                         .weight = w.device(),
                         .bias = {},
                         .out = {out.device(), kOut},
                         .statistics = statistics.device().as<float>()});
  expect_stored(out, expected.out, 1e-6, "out");
}

TEST_P(Norm, BiasGradientSumsColumns) {
  for (const std::uint64_t rows : {1U, 7U, 8U, 9U, 33U, 2500U}) {
    for (const auto& [columns, stride] : {std::pair{1U, 1U},
                                          {16U, 16U},
                                          {67U, 67U},
                                          {16U, 48U},
                                          {16U, 21U}}) {  // all columns of a matrix, or some
      const Operand dy = random(rows * stride, 1, 0.5F);
      std::vector<double> expected(columns);
      for (std::size_t i = 0; i < dy.exact.size(); ++i) {
        if (i % stride < columns) expected[i % stride] += dy.exact[i];
      }
      const TestMemory gradient = floats(columns);
      const TestMemory space = workspace(ops_->reduction_workspace(rows, columns));
      const auto values = gradient.device().as<float>();
      ops_->bias_gradient(rows, {dy.device(), stride}, {values, true}, space.device());
      expect_floats(gradient, expected, 2e-6, "sum");
      ops_->bias_gradient(rows, {dy.device(), stride}, {values, false}, space.device());
      for (double& value : expected) value *= 2;
      expect_floats(gradient, expected, 2e-6, "twice the sum");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCase, Norm, testing::ValuesIn(all_cases()), name_of_case);

}  // namespace
}  // namespace spillway::model::ops_norm_test
