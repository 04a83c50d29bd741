// Sums of squares: fixed tree, same bits everywhere, right against a long double sum.
#include "cpu_adam/gradient_norm.hpp"

#include <limits>

#include "cpu_adam/worker_pool.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::gradient_norm_test {
namespace {

std::vector<double> leaves_of(Isa isa, DType dtype, const std::byte* gradient, std::size_t count) {
  std::vector<double> leaves((count + kLeafParameters - 1) / kLeafParameters, -1);
  sum_squares(isa, dtype, gradient, count, leaves);
  return leaves;
}

/// The documented tree, written as the documentation says it.
double documented_leaf(std::span<const std::byte> gradient, DType dtype, std::size_t first,
                       std::size_t count) {
  std::vector<double> sums(32, 0.0);
  for (std::size_t i = 0; i < count; ++i) {
    const double x = gradient_at(gradient, dtype, first + i);
    sums[i % 32] += x * x;
  }
  while (sums.size() > 1) {
    const std::size_t half = sums.size() / 2;
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
    sums.resize(half);
  }
  return sums[0];
}

class GradientNorm : public ::testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  Isa isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(GradientNorm, LeavesHaveTheBitsOfTheDocumentedTreeForEveryTailAndMisalignment) {
  Random random = seeded_random();
  const std::size_t longest = 2 * kLeafParameters;
  const Problem problem = random_problem(random, dtype(), longest);
  std::uniform_int_distribution<std::size_t> shift(0, 63);
  std::vector<std::size_t> counts;
  for (std::size_t tail = 0; tail <= 64; ++tail) {
    for (const std::size_t base : {std::size_t{0}, std::size_t{4096 - 64}, std::size_t{4096}}) {
      counts.push_back(base + tail);
    }
  }
  for (const std::size_t count : counts) {
    GuardedBytes copy(count * size_of(dtype()), shift(random));
    if (count > 0) {
      std::memcpy(copy.as<std::byte>(), problem.gradient.data(), count * size_of(dtype()));
    }
    const std::vector<double> leaves = leaves_of(isa(), dtype(), copy.as<std::byte>(), count);
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      const std::size_t first = leaf * kLeafParameters;
      const std::size_t length = std::min<std::size_t>(kLeafParameters, count - first);
      ASSERT_EQ(leaves[leaf], documented_leaf(problem.gradient, dtype(), first, length))
          << "count " << count << " leaf " << leaf;
    }
  }
}

TEST_P(GradientNorm, ShortLeafEqualsItsPaddingByZeros) {
  Random random = seeded_random();
  Problem problem = random_problem(random, dtype(), kLeafParameters);
  const auto short_leaf = leaves_of(isa(), dtype(), problem.gradient.data(), 1234);
  std::fill(problem.gradient.begin() + static_cast<std::ptrdiff_t>(1234 * size_of(dtype())),
            problem.gradient.end(), std::byte{0});
  EXPECT_EQ(short_leaf, leaves_of(isa(), dtype(), problem.gradient.data(), kLeafParameters));
}

TEST_P(GradientNorm, IsWithinRoundingOfALongDoubleSum) {
  Random random = seeded_random();
  constexpr std::size_t kCount = 300'000;
  const Problem problem = random_problem(random, dtype(), kCount);
  long double exact = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const long double x = gradient_at(problem.gradient, dtype(), i);
    exact += x * x;
  }
  const double sum = sum_leaves(leaves_of(isa(), dtype(), problem.gradient.data(), kCount));
  // Every addend passes at most 128 + 5 + 7 additions of positive numbers, each within 2^-53.
  EXPECT_NEAR(static_cast<double>(sum / exact), 1.0, 140 * 0x1p-53);
}

TEST_P(GradientNorm, NonFiniteGradientMakesItsLeafNonFiniteAndNoOther) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {std::size_t{4096}, std::size_t{5000}, std::size_t{8191}}) {
      std::vector<float> values(3 * kLeafParameters, 0.5F);
      values[at] = bad;
      const auto gradient = to_gradients(values, dtype());
      const auto leaves = leaves_of(isa(), dtype(), gradient.data(), values.size());
      EXPECT_EQ(leaves[0], 1024);
      EXPECT_FALSE(std::isfinite(leaves[1]));
      EXPECT_EQ(leaves[2], 1024);
    }
  }
}

TEST_P(GradientNorm, LargestFiniteGradientsStayFinite) {
  const float largest = dtype() == DType::fp16 ? 65504.0F : 3e38F;
  const std::vector<float> values(kLeafParameters, largest);
  const auto gradient = to_gradients(values, dtype());
  EXPECT_TRUE(std::isfinite(leaves_of(isa(), dtype(), gradient.data(), values.size())[0]));
}

std::string norm_name(const ::testing::TestParamInfo<std::tuple<Isa, DType>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::string(name_of(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Kernels, GradientNorm,
                         ::testing::Combine(::testing::ValuesIn(runnable_isas()),
                                            ::testing::Values(DType::fp32, DType::bf16,
                                                              DType::fp16)),
                         norm_name);

TEST(GradientNormTree, DoesNotDependOnTilesNorThreads) {
  Random random = seeded_random();
  constexpr std::size_t kLeaves = 37;
  const Problem problem = random_problem(random, DType::bf16, kLeaves * kLeafParameters - 1000);
  const std::size_t count = problem.master.size();
  const double whole =
      sum_leaves(leaves_of(Isa::scalar, DType::bf16, problem.gradient.data(), count));
  for (const std::size_t threads : {1U, 2U, 5U}) {
    WorkerPool pool({.threads = threads});
    std::vector<double> leaves(kLeaves);
    auto* const gradient = problem.gradient.data();
    pool.submit([&pool, &leaves, gradient, count] {
          pool.parallel_for(count, kLeafParameters, [&](std::size_t first, std::size_t last) {
            const std::size_t leaf = first / kLeafParameters;
            const std::size_t end = (last + kLeafParameters - 1) / kLeafParameters;
            sum_squares(best_isa(), DType::bf16, gradient + 2 * first, last - first,
                        std::span(leaves).subspan(leaf, end - leaf));
          });
        })
        .wait();
    EXPECT_EQ(sum_leaves(leaves), whole) << threads << " threads";
  }
}

TEST(GradientNormTree, SplitsAtTheLargestPowerOfTwoBelowTheCount) {
  // Values whose sum shows its order: 1 is lost beside 2^53 unless it meets another 1 first.
  const double big = 0x1p53;
  EXPECT_EQ(sum_leaves({}), 0);
  EXPECT_EQ(sum_leaves(std::vector<double>{3}), 3);
  EXPECT_EQ(sum_leaves(std::vector<double>{big, 1, 1}), big);               // (big + 1) + 1
  EXPECT_EQ(sum_leaves(std::vector<double>{big, 0, 1, 1}), big + 2);        // (big + 0) + (1 + 1)
  EXPECT_EQ(sum_leaves(std::vector<double>{big, 0, 1, 0, 1}), big);         // 4 | 1, not 2 | 3
  EXPECT_EQ(sum_leaves(std::vector<double>{big, 0, 0, 0, 1, 1}), big + 2);  // 4 | 2
}

}  // namespace
}  // namespace spillway::cpu_adam::test::gradient_norm_test
