// The update against fp64, element by element, and its constants.
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::update_accuracy_test {
namespace {

struct Exact {
  double master, m, v;
  double m_bound, master_bound;  ///< what the docs promise for |difference|
};

/// sqrt(1 - beta2^t) and lr / (1 - beta1^t) in fp64, as the published form of the step has them.
struct Corrections {
  double sqrt_correction2, step_size;
};

Corrections exact_corrections(const AdamOptions& options, std::uint64_t t) {
  const auto steps = static_cast<double>(t);
  return {.sqrt_correction2 = std::sqrt(1 - std::pow(options.beta2, steps)),
          .step_size = options.lr / (1 - std::pow(options.beta1, steps))};
}

/// One step in fp64, in the published form, from the same fp32 state, gradient, betas and decay.
Exact exact_step(const UpdateScalars& s, const Corrections& exact_constants, double eps,
                 double master, double m, double v, double gradient) {
  double g = gradient;
  if (s.mode == DecayMode::l2) g += static_cast<double>(s.l2) * master;
  Exact exact{};
  exact.m = s.beta1 * m + static_cast<double>(s.one_minus_beta1) * g;
  exact.v = s.beta2 * v + static_cast<double>(s.one_minus_beta2) * g * g;
  const auto& [sqrt_correction2, step_size] = exact_constants;
  const double denominator = std::sqrt(exact.v) / sqrt_correction2 + eps;
  exact.master = master * s.decay_factor - step_size * exact.m / denominator;
  const double scale = s.beta1 * std::abs(m) + static_cast<double>(s.one_minus_beta1) * std::abs(g);
  exact.m_bound = 2 * 0x1p-23 * scale;
  exact.master_bound = 4 * 0x1p-23 * (std::abs(master) + step_size * scale / denominator);
  return exact;
}

double ulp(double value) {
  return std::ldexp(1.0, std::max(std::ilogb(static_cast<float>(value)), -126) - 23);
}

class UpdateAccuracy : public ::testing::TestWithParam<Kernel> {};

/// Steps the state for real, so that it has the correlations of training, and compares each step
/// with fp64 from the state before it.
void compare_steps(const Kernel& kernel, DecayMode mode, Random& random, int steps) {
  constexpr std::size_t kCount = 203;
  Problem state = random_problem(random, kernel.gradient_dtype, kCount);
  std::fill(state.m.begin(), state.m.end(), 0.0F);
  std::fill(state.v.begin(), state.v.end(), 0.0F);
  std::normal_distribution<double> normal;
  std::vector<float> gradient(kCount);
  for (int t = 1; t <= steps; ++t) {
    // Scales that the tests' fp64 can undo exactly, so that the gradient is the same input.
    const double scale = t % 2 == 0 ? 1.0 : 0x1p-4;
    for (float& g : gradient) g = static_cast<float>(normal(random) / scale);
    state.gradient = to_gradients(gradient, kernel.gradient_dtype);
    const AdamOptions options{
        .lr = 2e-3, .weight_decay = mode == DecayMode::l2 ? 0.01 : 0.1, .decay_mode = mode};
    const auto step = static_cast<std::uint64_t>(t);
    const UpdateScalars s = make_scalars(options, step, scale);
    const Corrections corrections = exact_corrections(options, step);
    const Outcome got = run(kernel, s, state, kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      const double g = gradient_at(state.gradient, kernel.gradient_dtype, i) * scale;
      const Exact exact =
          exact_step(s, corrections, options.eps, state.master[i], state.m[i], state.v[i], g);
      // With L2 the gradient is itself a rounded sum: one more rounding before the square.
      const double v_ulps = mode == DecayMode::l2 ? 4 : 2;
      ASSERT_LE(std::abs(got.v[i] - exact.v), v_ulps * ulp(exact.v)) << "t " << t << " i " << i;
      ASSERT_LE(std::abs(got.m[i] - exact.m), exact.m_bound) << "t " << t << " i " << i;
      ASSERT_LE(std::abs(got.master[i] - exact.master), exact.master_bound)
          << "t " << t << " i " << i;
    }
    state.master = got.master;
    state.m = got.m;
    state.v = got.v;
  }
}

TEST_P(UpdateAccuracy, IsWithinTheBoundsOfFp64OverManySteps) {
  Random random = seeded_random();
  compare_steps(GetParam(), DecayMode::decoupled, random, 1000);
}

TEST_P(UpdateAccuracy, WithL2DecayIsWithinTheBoundsOfFp64) {
  Random random = seeded_random();
  compare_steps(GetParam(), DecayMode::l2, random, 100);
}

INSTANTIATE_TEST_SUITE_P(Kernels, UpdateAccuracy, ::testing::ValuesIn(exact_kernels()),
                         kernel_name);

TEST(UpdateScalars, CorrectTheBiasAtTheFirstTheThousandthAndTheMillionthStep) {
  // 1 - beta^t by hand: at t = 1 it is 1 - beta; at 1000, 0.9^1000 is 1.7e-46 and 0.999^1000 is
  // 0.36769542477096376; at 10^6 both are gone.
  const AdamOptions options{.lr = 0.5, .eps = 0.25};
  const UpdateScalars first = make_scalars(options, 1, 1);
  EXPECT_FLOAT_EQ(first.step_size, static_cast<float>(5 * std::sqrt(0.001)));
  EXPECT_FLOAT_EQ(first.eps, static_cast<float>(0.25 * std::sqrt(0.001)));
  const double thousand = std::sqrt(1 - 0.36769542477096376);
  const UpdateScalars thousandth = make_scalars(options, 1000, 1);
  EXPECT_FLOAT_EQ(thousandth.step_size, static_cast<float>(0.5 * thousand));
  EXPECT_FLOAT_EQ(thousandth.eps, static_cast<float>(0.25 * thousand));
  const UpdateScalars millionth = make_scalars(options, 1'000'000, 1);
  EXPECT_EQ(millionth.step_size, 0.5F);
  EXPECT_EQ(millionth.eps, 0.25F);
}

TEST(UpdateScalars, MatchAnIndependentPowerForManySteps) {
  for (std::uint64_t t = 1; t < 200'000; t = t * 3 / 2 + 1) {
    for (const double beta : {0.9, 0.95, 0.999, 0.99999}) {
      const UpdateScalars s = make_scalars({.lr = 1, .beta1 = beta, .beta2 = beta, .eps = 1}, t, 1);
      const double correction = -std::expm1(static_cast<double>(t) * std::log(beta));
      EXPECT_NEAR(s.step_size * std::sqrt(correction), 1, 1e-7) << "t " << t << " beta " << beta;
      EXPECT_NEAR(s.eps / std::sqrt(correction), 1, 1e-7) << "t " << t;
    }
  }
}

TEST(UpdateScalars, WithoutBiasCorrectionAreTheSameAtEveryStep) {
  const UpdateScalars s = make_scalars({.lr = 0.5, .eps = 0.25, .bias_correction = false}, 1, 1);
  EXPECT_EQ(s.step_size, 0.5F);
  EXPECT_EQ(s.eps, 0.25F);
}

TEST(UpdateScalars, DecayEitherTheMasterOrTheGradient) {
  const AdamOptions options{.lr = 0.25, .weight_decay = 0.5};
  const UpdateScalars decoupled = make_scalars(options, 1, 1);
  EXPECT_EQ(decoupled.decay_factor, 0.875F);
  EXPECT_EQ(decoupled.l2, 0.0F);
  AdamOptions l2 = options;
  l2.decay_mode = DecayMode::l2;
  EXPECT_EQ(make_scalars(l2, 1, 1).decay_factor, 1.0F);
  EXPECT_EQ(make_scalars(l2, 1, 1).l2, 0.5F);
}

TEST(UpdateScalars, RefuseWhatIsOutsideItsRangeByName) {
  const auto refused = [](const AdamOptions& options, std::uint64_t t, double scale,
                          const std::string& name) {
    try {
      static_cast<void>(make_scalars(options, t, scale));
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };
  refused({.lr = -1}, 1, 1, "lr");
  refused({.lr = std::nan("")}, 1, 1, "lr");
  refused({.beta1 = 1}, 1, 1, "beta1");
  refused({.beta2 = -0.1}, 1, 1, "beta2");
  refused({.eps = INFINITY}, 1, 1, "eps");
  refused({.weight_decay = -0.1}, 1, 1, "weight_decay");
  refused({}, 1, INFINITY, "gradient_scale");
  refused({}, 0, 1, "t is 0");
}

}  // namespace
}  // namespace spillway::cpu_adam::test::update_accuracy_test
