// Updates of parameters whose passes the test runs, against Adam in fp64, written here.
#include <cmath>

#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_adam_test {
namespace {

/// Adam with decoupled decay as Loshchilov & Hutter write it, in fp64.
struct PlainAdam {
  std::vector<double> p, m, v;
  void update(const Tensor& gradient, double scale, const cpu_adam::AdamOptions& o, int t) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i] * scale;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(o.beta1, t));
      const double v_hat = v[i] / (1 - std::pow(o.beta2, t));
      p[i] -= o.lr * o.weight_decay * p[i];
      p[i] -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
    }
  }
};

std::vector<PlainAdam> plain_adam(const Model& model) {
  std::vector<PlainAdam> plain;
  for (const Tensor& values : model.values) {
    plain.push_back({.p = {values.begin(), values.end()},
                     .m = std::vector<double>(values.size()),
                     .v = std::vector<double>(values.size())});
  }
  return plain;
}

/// Twenty updates of at most lr each, rounded to fp32 at every operation.
void expect_values_of(const std::vector<PlainAdam>& plain, EmbeddedTrainer& trainer) {
  for (std::uint32_t i = 0; i < trainer.size(); ++i) {
    const auto* values = reinterpret_cast<const float*>(trainer.values(i).data());
    for (std::size_t k = 0; k < plain[i].p.size(); ++k) {
      ASSERT_NEAR(values[k], plain[i].p[k], 1e-5 * std::max(1.0, std::abs(plain[i].p[k])))
          << i << " " << k;
    }
  }
}

TEST_F(EmbeddedTrainerTest, FollowsAdamInDoublePrecision) {
  EmbeddedOptions options = options_for();
  const auto trainer = make(options);
  std::vector<PlainAdam> plain = plain_adam(model_);
  for (int step = 1; step <= 20; ++step) {
    options.groups[0].lr = 1e-2 / step;
    trainer->set_group(0, options.groups[0]);
    double squares = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      for (const float g : model_.gradient(i, step)) squares += double{g} * g / 4;
    }
    const double norm = std::sqrt(squares);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      plain[i].update(model_.gradient(i, step), 50 / (norm + 1e-6) / 2,
                      options.groups[model_.groups[i]], step);
    }
    backward(*trainer, step);
    const EmbeddedResult result = trainer->step({.gradient_divisor = 2, .max_norm = 50});
    EXPECT_EQ(result.step, step);
    EXPECT_NEAR(result.grad_norm, norm, 1e-9 * norm);
  }
  expect_values_of(plain, *trainer);
  for (std::uint32_t i = 0; i < trainer->size(); ++i) {
    // Adam itself does not notice a gradient that is too large; its moments do.
    std::vector<float> m(model_.sizes[i]), v(model_.sizes[i]);
    trainer->read_state(i, {}, m, v);
    for (std::size_t k = 0; k < m.size(); ++k) {
      ASSERT_NEAR(m[k], plain[i].m[k], 1e-5);
      ASSERT_NEAR(v[k], plain[i].v[k], 1e-5 * plain[i].v[k] + 1e-30);
    }
  }
}

/// Each of five steps leaves another parameter out, and the sixth none; then their counts are equal
/// again.
TEST_F(EmbeddedTrainerTest, UpdatesEachParameterAsOftenAsItHadAGradient) {
  EmbeddedOptions options = options_for();
  options.missing_gradient = MissingGradient::skip;
  const auto trainer = make(options);
  std::vector<PlainAdam> plain = plain_adam(model_);
  std::vector<int> counts(plain.size());
  for (int step = 1; step <= 18; ++step) {
    const auto left_out = static_cast<std::size_t>(step % 6);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      if (i + 1 == left_out) continue;
      give(*trainer, i, step);
      plain[i].update(model_.gradient(i, step), 0.5, options.groups[model_.groups[i]], ++counts[i]);
    }
    trainer->step({.gradient_divisor = 2});
  }
  trainer->wait();
  expect_values_of(plain, *trainer);
}

}  // namespace
}  // namespace spillway::engine::embedded_adam_test
