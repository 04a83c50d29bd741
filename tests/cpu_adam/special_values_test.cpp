// NaN, infinities, denormals and the caller's floating-point environment.
#include <limits>

#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::special_values_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = 1e-40F;
constexpr float kSmallestNormal = std::numeric_limits<float>::min();

struct Element {
  float gradient, master, m, v;
};

/// Puts `elements` at the start of a problem whose other gradients and moments are ordinary.
Problem problem_of(std::span<const Element> elements, DType dtype) {
  Random random(5);
  Problem problem = random_problem(random, dtype, 100);
  std::vector<float> gradient(100, 0.25F);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    gradient[i] = elements[i].gradient;
    problem.master[i] = elements[i].master;
    problem.m[i] = elements[i].m;
    problem.v[i] = elements[i].v;
  }
  problem.gradient = to_gradients(gradient, dtype);
  return problem;
}

class SpecialValues : public ::testing::TestWithParam<Kernel> {
 protected:
  [[nodiscard]] Outcome update(std::span<const Element> elements, const AdamOptions& options = {},
                               double scale = 1) const {
    const Problem problem = problem_of(elements, GetParam().gradient_dtype);
    return run(GetParam(), make_scalars(options, 10, scale), problem, problem.master.size());
  }
  [[nodiscard]] float parameter(const Outcome& outcome, std::size_t i) const {
    return gradient_at(outcome.parameters, GetParam().parameter_dtype, i);
  }
};

TEST_P(SpecialValues, NanGradientMakesItsElementNanAndNoOther) {
  const Element elements[] = {{0.5F, 1, 0, 0}, {kNan, 1, 0, 0}, {0.5F, 1, 0, 0}};
  const Outcome got = update(elements);
  EXPECT_TRUE(std::isnan(got.master[1]) && std::isnan(got.m[1]) && std::isnan(got.v[1]));
  EXPECT_TRUE(std::isnan(parameter(got, 1)));
  for (std::size_t i = 0; i < got.master.size(); ++i) {
    EXPECT_EQ(std::isfinite(got.master[i]) && std::isfinite(got.v[i]), i != 1) << i;
  }
}

TEST_P(SpecialValues, InfiniteGradientMakesMomentsInfiniteAndMasterNan) {
  const Element elements[] = {{kInfinity, 1, 0, 0}, {-kInfinity, 1, 0, 0}, {0.5F, 1, 0, 0}};
  const Outcome got = update(elements);
  EXPECT_EQ(got.m[0], kInfinity);
  EXPECT_EQ(got.m[1], -kInfinity);
  EXPECT_EQ(got.v[0], kInfinity);
  EXPECT_EQ(got.v[1], kInfinity);
  EXPECT_TRUE(std::isnan(got.master[0]) && std::isnan(got.master[1]));
  EXPECT_TRUE(std::isnan(parameter(got, 0)));
  EXPECT_TRUE(std::isfinite(got.master[2]));
}

TEST_P(SpecialValues, GradientWhoseSquareOverflowsLeavesTheMaster) {
  const Element elements[] = {{1024, 1, 0, 0}};
  const Outcome got = update(elements, {}, 1e30);
  EXPECT_EQ(got.v[0], kInfinity);
  EXPECT_TRUE(std::isfinite(got.m[0]));
  EXPECT_EQ(got.master[0], 1.0F);
}

TEST_P(SpecialValues, ZeroVarianceWithZeroEpsGivesNan) {
  const Element elements[] = {{0, 1, 0, 0}};
  EXPECT_TRUE(std::isnan(update(elements, {.eps = 0}).master[0]));
  EXPECT_EQ(update(elements).master[0], 1.0F);
}

TEST_P(SpecialValues, DenormalStateCountsAsZeroAndIsNeverWritten) {
  const Element elements[] = {
      {0, kDenormal, kDenormal, kDenormal},           // denormal inputs
      {0, 1, kSmallestNormal, kSmallestNormal},       // results fall below the normal range
      {0, -kSmallestNormal, -kSmallestNormal, 0.5F},  // with a sign
  };
  const Outcome got = update(elements, {.lr = 0.01, .weight_decay = 0.5});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.m[i], 0.0F) << i;
  }
  EXPECT_EQ(got.v[0], 0.0F);
  EXPECT_EQ(got.v[1], 0.0F);
  EXPECT_EQ(got.master[0], 0.0F);
  EXPECT_EQ(got.master[1], 1.0F * static_cast<float>(1 - 0.01 * 0.5));
  EXPECT_EQ(got.master[2], 0.0F);
  for (std::size_t i = 0; i < got.master.size(); ++i) {
    for (const float x : {got.master[i], got.m[i], got.v[i]}) {
      EXPECT_NE(std::fpclassify(x), FP_SUBNORMAL) << i;
    }
  }
}

TEST_P(SpecialValues, SubnormalFp16GradientsAndParametersAreOrdinaryNumbers) {
  const float tiny = 0x1p-24F;  // the smallest fp16 subnormal
  const Element elements[] = {{tiny, 3 * tiny, 0, 0}};
  const Outcome got = update(elements, {.lr = 0});
  EXPECT_EQ(parameter(got, 0), 3 * tiny);
  EXPECT_FLOAT_EQ(got.m[0], 0.1F * tiny);
}

/// What holds for rounded state too.
class AnyFormat : public SpecialValues {};

TEST_P(AnyFormat, AgreeWithThePlainKernelInEveryMixture) {
  const float values[] = {0.0F,       -0.0F,           kDenormal,
                          -kDenormal, kSmallestNormal, 1.0F,
                          -3.5F,      1e30F,           std::numeric_limits<float>::max(),
                          kInfinity,  -kInfinity,      kNan};
  Random random = seeded_random();
  std::uniform_int_distribution<std::size_t> pick(0, std::size(values) - 1);
  Problem problem = random_problem(random, GetParam().gradient_dtype, 5000);
  std::vector<float> gradient(problem.master.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = values[pick(random)];
    problem.master[i] = values[pick(random)];
    problem.m[i] = values[pick(random)];
    problem.v[i] = values[pick(random)];  // negative ones too: their root is NaN
  }
  problem.gradient = to_gradients(gradient, GetParam().gradient_dtype);
  const Kernel& plain = plain_kernel(GetParam());
  for (const DecayMode mode : {DecayMode::decoupled, DecayMode::l2}) {
    const UpdateScalars s = make_scalars({.weight_decay = 0.1, .decay_mode = mode}, 3, 0.5);
    EXPECT_TRUE(same_bits(run(GetParam(), s, problem, gradient.size()),
                          run(plain, s, problem, gradient.size()), gradient.size(),
                          GetParam().parameter_dtype));
  }
}

TEST_P(AnyFormat, CallersFloatingPointEnvironmentChangesNothingAndComesBack) {
  Random random = seeded_random();
  const Problem problem = random_problem(random, GetParam().gradient_dtype, 1000);
  const UpdateScalars s = make_scalars({.weight_decay = 0.1}, 3, 0.5);
  const Outcome usual = run(GetParam(), s, problem, 1000);
  fesetround(FE_UPWARD);
  const unsigned before = floating_point_control();
  const Outcome got = run(GetParam(), s, problem, 1000);
  const unsigned after = floating_point_control();
  fesetround(FE_TONEAREST);
  EXPECT_EQ(after, before);
  EXPECT_TRUE(same_bits(got, usual, 1000, GetParam().parameter_dtype));
}

INSTANTIATE_TEST_SUITE_P(Kernels, SpecialValues, ::testing::ValuesIn(exact_kernels()), kernel_name);
INSTANTIATE_TEST_SUITE_P(Kernels, AnyFormat, ::testing::ValuesIn(runnable_kernels()), kernel_name);

}  // namespace
}  // namespace spillway::cpu_adam::test::special_values_test
