// Adagrad, Lion and SGD with momentum against their formulas in fp64, and their use of state.
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::optimizers_test {
namespace {

struct OptimizerCase {
  Optimizer optimizer;
  DecayMode mode;
  const char* name;
};

constexpr OptimizerCase kCases[] = {
    {Optimizer::adam, DecayMode::l2, "adam"},
    {Optimizer::adagrad, DecayMode::decoupled, "adagrad"},
    {Optimizer::adagrad, DecayMode::l2, "adagrad_l2"},
    {Optimizer::lion, DecayMode::decoupled, "lion"},
    {Optimizer::sgd, DecayMode::decoupled, "sgd_decoupled"},
    {Optimizer::sgd, DecayMode::l2, "sgd"},
};

class Optimizers : public ::testing::TestWithParam<OptimizerCase> {
 protected:
  [[nodiscard]] static AdamOptions options() {
    return {.lr = 1e-2,
            .beta2 = 0.99,
            .weight_decay = 0.1,
            .decay_mode = GetParam().mode,
            .optimizer = GetParam().optimizer};
  }
};

TEST_P(Optimizers, FollowTheirFormula) {
  constexpr std::size_t kCount = 500;
  Random random = seeded_random();
  const Problem problem = random_problem(random, DType::fp32, kCount);
  const UpdateScalars s = make_scalars(options(), 3, 0.5);
  const Outcome got = run(find_kernel(best_isa(), DType::fp32, DType::fp32), s, problem, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const double p = problem.master[i];
    const double m = problem.m[i];
    const double v = problem.v[i];
    double g = 0.5 * gradient_at(problem.gradient, DType::fp32, i);
    double terms = std::abs(g);  // of g, which may cancel
    if (GetParam().mode == DecayMode::l2) {
      g += 0.1 * p;
      terms += 0.1 * std::abs(p);
    }
    const double kept = GetParam().mode == DecayMode::decoupled ? p * (1 - 1e-2 * 0.1) : p;
    double next_m = m;
    double next_v = v;
    double direction = 0;
    switch (GetParam().optimizer) {
      case Optimizer::adam:
        next_m = 0.9 * m + 0.1 * g;
        next_v = 0.99 * v + 0.01 * g * g;
        direction =
            next_m / (1 - std::pow(0.9, 3)) / (std::sqrt(next_v / (1 - std::pow(0.99, 3))) + 1e-8);
        break;
      case Optimizer::adagrad:
        next_v = v + g * g;
        direction = g / (std::sqrt(next_v) + 1e-8);
        break;
      case Optimizer::lion: {
        const double c = 0.9 * m + 0.1 * g;
        if (std::abs(c) < 1e-6 * std::abs(m)) continue;  // its sign is a matter of rounding
        direction = c > 0 ? 1 : -1;
        next_m = 0.99 * m + 0.01 * g;
        break;
      }
      case Optimizer::sgd:
        next_m = 0.9 * m + g;
        direction = next_m;
        break;
    }
    // A few roundings of the terms, which may cancel.
    const double scale = std::abs(p) + std::abs(g) + std::abs(m) + std::abs(direction);
    EXPECT_NEAR(got.m[i], next_m, 1e-6 * scale) << i;
    EXPECT_NEAR(got.v[i], next_v, 1e-6 * (v + terms * terms)) << i;
    EXPECT_NEAR(got.master[i], kept - 1e-2 * direction, 1e-6 * scale) << i;
  }
}

TEST_P(Optimizers, GiveTheSameBitsInEveryKernel) {
  Random random = seeded_random();
  constexpr std::size_t kCount = 3 * 256 + 77;
  for (const Kernel& kernel : runnable_kernels()) {
    const Problem problem = random_problem(random, kernel.gradient_dtype, kCount);
    const UpdateScalars s = make_scalars(options(), 3, 0.5);
    const Outcome whole = run(plain_kernel(kernel), s, problem, kCount);
    for (const bool in_place : {true, false}) {
      // Out of place state that is not kept stays unwritten: nothing to compare.
      if (!in_place && !(uses_m(s.optimizer) && uses_v(s.optimizer))) continue;
      const Layout layout{.in_place = in_place};
      EXPECT_TRUE(
          same_bits(run(kernel, s, problem, kCount, layout), whole, kCount, kernel.parameter_dtype))
          << kernel.name;
    }
  }
}

TEST_P(Optimizers, NeedNoMemoryForStateThatTheyDoNotKeep) {
  constexpr std::size_t kCount = 256 + 5;
  const std::vector<float> gradient(kCount, 0.5F);
  for (const Isa isa : runnable_isas()) {
    std::vector<float> master(kCount, 1.0F), m(kCount), v(kCount);
    const UpdateScalars s = make_scalars(options(), 1, 1);
    const bool has_m = uses_m(s.optimizer);
    const bool has_v = uses_v(s.optimizer);
    const UpdateRange range{.gradient = gradient.data(),
                            .master_in = master.data(),
                            .m_in = has_m ? m.data() : nullptr,
                            .v_in = has_v ? v.data() : nullptr,
                            .master_out = master.data(),
                            .m_out = has_m ? m.data() : nullptr,
                            .v_out = has_v ? v.data() : nullptr,
                            .count = kCount,
                            .prefetch_distance = 512};
    find_kernel(isa, DType::fp32, DType::fp32).update(s, range);
    EXPECT_EQ(master.front(), master.back());
    EXPECT_LT(master.front(), 1.0F);
  }
}

std::string optimizer_name(const ::testing::TestParamInfo<OptimizerCase>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers, ::testing::ValuesIn(kCases), optimizer_name);

}  // namespace
}  // namespace spillway::cpu_adam::test::optimizers_test
