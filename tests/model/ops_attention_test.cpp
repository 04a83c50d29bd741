// Attention and rope against fp64 definitions, forward and backward.
#include "runtime/model/rope_frequencies.hpp"
#include "tests/model/ops_support.hpp"

namespace spillway::model::ops_attention_test {
namespace {

/// Causal attention of one (batch, query head), by the definition.
struct Reference {
  AttentionShape shape;
  std::vector<double> out, dq, dk, dv, log_sum;

  Reference(const AttentionShape& s, const std::vector<double>& q, const std::vector<double>& k,
            const std::vector<double>& v, const std::vector<double>& d_out)
      : shape(s),
        out(q.size()),
        dq(q.size()),
        dk(k.size()),
        dv(v.size()),
        log_sum(std::size_t{s.batch} * s.heads * s.sequence) {
    for (std::size_t b = 0; b < s.batch; ++b) {
      for (std::size_t h = 0; h < s.heads; ++h) {
        for (std::size_t t = 0; t < s.sequence; ++t) row(q, k, v, d_out, b, h, t);
      }
    }
  }

 private:
  std::size_t at(std::size_t b, std::size_t t, std::size_t head, std::size_t heads) const {
    return ((b * shape.sequence + t) * heads + head) * shape.head_dim;
  }
  void row(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
           const std::vector<double>& d_out, std::size_t b, std::size_t h, std::size_t t) {
    const std::size_t dim = shape.head_dim;
    const std::size_t kv = h / (shape.heads / shape.kv_heads);
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    const std::size_t qt = at(b, t, h, shape.heads);
    const auto dot = [&](const std::vector<double>& x, std::size_t i, const std::vector<double>& y,
                         std::size_t j) {
      double sum = 0;
      for (std::size_t d = 0; d < dim; ++d) sum += x[i + d] * y[j + d];
      return sum;
    };
    std::vector<double> p(t + 1);
    double total = 0;
    for (std::size_t j = 0; j <= t; ++j) {
      p[j] = std::exp(scale * dot(q, qt, k, at(b, j, kv, shape.kv_heads)));
      total += p[j];
    }
    log_sum[(b * shape.heads + h) * shape.sequence + t] = std::log(total);
    double weighted = 0;
    for (std::size_t j = 0; j <= t; ++j) {
      p[j] /= total;
      const std::size_t vj = at(b, j, kv, shape.kv_heads);
      for (std::size_t d = 0; d < dim; ++d) out[qt + d] += p[j] * v[vj + d];
      weighted += p[j] * dot(d_out, qt, v, vj);
    }
    for (std::size_t j = 0; j <= t; ++j) {
      const std::size_t kj = at(b, j, kv, shape.kv_heads);
      const double ds = p[j] * (dot(d_out, qt, v, kj) - weighted) * scale;
      for (std::size_t d = 0; d < dim; ++d) {
        dq[qt + d] += ds * k[kj + d];
        dk[kj + d] += ds * q[qt + d];
        dv[kj + d] += p[j] * d_out[qt + d];
      }
    }
  }
};

class Attention : public OpsTest {
 protected:
  Attention() { floor_ = 1; }  // with one key the gradient of its score is 0, a difference of terms

  /// `gap` elements that belong to nobody follow the heads in every row.
  void check(AttentionShape s, std::uint64_t gap = 0) {
    SCOPED_TRACE(testing::Message()
                 << "batch " << s.batch << " sequence " << s.sequence << " heads " << s.heads << "/"
                 << s.kv_heads << " of " << s.head_dim << " gap " << gap);
    const std::size_t tokens = std::size_t{s.batch} * s.sequence;
    const std::uint64_t q_stride = s.q_columns() + gap;
    const std::uint64_t kv_stride = s.kv_columns() + gap;
    s.strides = {.q = q_stride,
                 .k = kv_stride,
                 .v = kv_stride,
                 .out = q_stride,
                 .q_gradient = q_stride,
                 .k_gradient = kv_stride,
                 .v_gradient = kv_stride};
    const Operand q = random(tokens * q_stride);
    const Operand k = random(tokens * kv_stride);
    const Operand v = random(tokens * kv_stride);
    const Operand d_out = random(tokens * q_stride);
    const Reference expected(s, heads(q.exact, gap, q_stride), heads(k.exact, gap, kv_stride),
                             heads(v.exact, gap, kv_stride), heads(d_out.exact, gap, q_stride));
    const AttentionPlan plan = ops_->plan_attention(s);
    const TestMemory space = workspace(plan.workspace);
    const TestMemory out = elements(tokens * q_stride);
    const TestMemory log_sum = floats(tokens * s.heads);
    const HeadRows<ConstTensor> q_in{q.device(), q_stride};
    const HeadRows<ConstTensor> k_in{k.device(), kv_stride};
    const HeadRows<ConstTensor> v_in{v.device(), kv_stride};
    ops_->attention_forward(plan, {.q = q_in,
                                   .k = k_in,
                                   .v = v_in,
                                   .out = {out.device(), q_stride},
                                   .log_sum = log_sum.device().as<float>(),
                                   .workspace = space.device()});
    // Scores of about 40 in fp32 before the exponential: 40 * 2^-24 relative, a few of them.
    expect_heads(out, expected.out, gap, q_stride, 1e-5, "out");
    expect_floats(log_sum, expected.log_sum, 1e-6, "log of the sum");
    const TestMemory dq = elements(tokens * q_stride);
    const TestMemory dk = elements(tokens * kv_stride);
    const TestMemory dv = elements(tokens * kv_stride);
    ops_->attention_backward(plan, {.q = q_in,
                                    .k = k_in,
                                    .v = v_in,
                                    .out = {out.device(), q_stride},
                                    .out_gradient = {d_out.device(), q_stride},
                                    .log_sum = log_sum.device().as<const float>(),
                                    .q_gradient = {dq.device(), q_stride},
                                    .k_gradient = {dk.device(), kv_stride},
                                    .v_gradient = {dv.device(), kv_stride},
                                    .workspace = space.device()});
    // Backward reads the rounded output: its error enters every row's mean.
    const double tolerance = 1e-5 + 4 * rounding();
    expect_heads(dq, expected.dq, gap, q_stride, tolerance, "q gradient");
    expect_heads(dk, expected.dk, gap, kv_stride, tolerance, "k gradient");
    expect_heads(dv, expected.dv, gap, kv_stride, 1e-5, "v gradient");
  }

 private:
  /// Rows of `stride` without the `gap` at their ends.
  template <class T>
  static std::vector<T> heads(const std::vector<T>& rows, std::uint64_t gap, std::uint64_t stride) {
    std::vector<T> result;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i % stride < stride - gap) result.push_back(rows[i]);
    }
    return result;
  }
  void expect_heads(const TestMemory& actual, const std::vector<double>& expected,
                    std::uint64_t gap, std::uint64_t stride, double tolerance,
                    const char* what) const {
    const std::vector<float> rows = decode(actual, dtype_);
    const double subnormal = dtype_ == DType::fp16 ? 1e-7 : 0;  // as expect_stored
    expect_close(heads(rows, gap, stride), expected, rounding(), tolerance + subnormal, what);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i % stride < stride - gap) continue;
      ASSERT_TRUE(std::isnan(rows[i])) << what << " wrote a gap";
    }
  }
};

TEST_P(Attention, AgreesWithFp64) {
  check({.batch = 2, .sequence = 64, .heads = 2, .kv_heads = 2, .head_dim = 64});
  check({.batch = 1, .sequence = 130, .heads = 1, .kv_heads = 1, .head_dim = 16});
}

TEST_P(Attention, SharesKeysAmongAGroupOfQueryHeads) {
  check({.batch = 2, .sequence = 33, .heads = 6, .kv_heads = 2, .head_dim = 8});
  check({.batch = 1, .sequence = 70, .heads = 4, .kv_heads = 1, .head_dim = 32});
}

TEST_P(Attention, KeepsToTheStridesOfItsPlan) {
  check({.batch = 2, .sequence = 72, .heads = 6, .kv_heads = 2, .head_dim = 40}, 24);
  check({.batch = 1, .sequence = 19, .heads = 2, .kv_heads = 1, .head_dim = 12}, 3);
}

TEST_P(Attention, HandlesTailsOfEveryKind) {
  for (const std::uint32_t sequence : {1U, 2U, 15U, 16U, 17U, 63U, 65U}) {
    check({.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 1, .head_dim = 20});
  }
  for (const std::uint32_t dim : {1U, 15U, 17U, 80U}) {
    check({.batch = 1, .sequence = 19, .heads = 1, .kv_heads = 1, .head_dim = dim});
  }
}

TEST_P(Attention, KeepsScoresFarApartFinite) {
  // Scores of +-10^4 (in fp32): the largest wins, nothing overflows.
  const AttentionShape s{.batch = 1, .sequence = 20, .heads = 1, .kv_heads = 1, .head_dim = 16};
  const Operand q = random(20 * 16, 100);
  const Operand v = random(20 * 16);
  const AttentionPlan plan = ops_->plan_attention(s);
  const TestMemory space = workspace(plan.workspace);
  const TestMemory out = elements(20 * 16);
  const TestMemory log_sum = floats(20);
  ops_->attention_forward(plan, {.q = {q.device(), 16},
                                 .k = {q.device(), 16},
                                 .v = {v.device(), 16},
                                 .out = {out.device(), 16},
                                 .log_sum = log_sum.device().as<float>(),
                                 .workspace = space.device()});
  for (const float value : decode(out, dtype_)) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(Attention, RopeRotatesPairsByThePositionsAngle) {
  constexpr std::uint32_t kSequence = 5;
  for (const std::uint32_t half : {1U, 8U, 10U, 32U}) {
    std::vector<float> frequencies(half);
    for (std::uint32_t i = 0; i < half; ++i) frequencies[i] = 1.0F / static_cast<float>(i + 1);
    const TestMemory angles{std::span<const float>(rope_angles(frequencies, kSequence))};
    constexpr std::uint32_t kHeads = 3;
    const std::uint64_t stride = kHeads * 2 * half + 7;  // rows hold more than the heads
    const std::uint32_t tokens = 2 * kSequence;
    const Operand x = random(tokens * stride);
    std::vector<double> expected = x.exact;
    for (std::uint32_t t = 0; t < tokens; ++t) {
      for (std::uint32_t h = 0; h < kHeads; ++h) {
        for (std::uint32_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(t % kSequence) * static_cast<double>(frequencies[i]);
          const std::size_t a = t * stride + h * 2 * half + i;
          expected[a] = x.exact[a] * std::cos(angle) - x.exact[a + half] * std::sin(angle);
          expected[a + half] = x.exact[a + half] * std::cos(angle) + x.exact[a] * std::sin(angle);
        }
      }
    }
    RopeArguments arguments{.heads = {x.device(), stride},
                            .tokens = tokens,
                            .head_count = kHeads,
                            .head_dim = 2 * half,
                            .sequence = kSequence,
                            .angles = angles.device().as<const float>(),
                            .direction = RopeDirection::forward};
    ops_->rope(arguments);
    expect_stored(x.memory, expected, 1e-6, "rotated");
    arguments.direction = RopeDirection::backward;
    ops_->rope(arguments);
    expect_stored(x.memory, x.exact, 1e-6 + 2 * rounding(), "rotated back");
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCase, Attention, testing::ValuesIn(all_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(InParts, Attention, testing::ValuesIn(cases_in_parts()), name_of_case);

}  // namespace
}  // namespace spillway::model::ops_attention_test
