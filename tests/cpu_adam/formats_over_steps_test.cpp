// What the formats do over many steps: split is fp32, bf16 decays, int8 follows.
#include "cpu_adam/update.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::formats_over_steps_test {
namespace {

/// Steps a whole state in place and keeps it packed between steps, as a run does.
class Stepper {
 public:
  Stepper(const Kernel& kernel, const Problem& start)
      : kernel_(kernel),
        layout_(make_layout(kernel.format, start.master.size())),
        state_(layout_.bytes),
        parameters_(start.master.size() * size_of(kernel.parameter_dtype)) {
    pack_state(layout_, {.master = start.master, .m = start.m, .v = start.v}, state_.data(),
               parameters_.data());
  }
  void step(const UpdateScalars& scalars, const std::vector<std::byte>& gradient) {
    kernel_.update(scalars, tile_range(layout_, state_.data(), state_.data(), gradient.data(),
                                       parameters_.data(), parameters_.data()));
  }
  [[nodiscard]] Outcome outcome() const {
    const std::size_t n = layout_.count;
    Outcome result{.master = std::vector<float>(n),
                   .m = std::vector<float>(n),
                   .v = std::vector<float>(n),
                   .parameters = parameters_};
    unpack_state(layout_, state_.data(), parameters_.data(),
                 {.master = result.master, .m = result.m, .v = result.v});
    return result;
  }

 private:
  const Kernel& kernel_;
  StateLayout layout_;
  std::vector<std::byte> state_, parameters_;
};

Problem without_moments(Random& random, std::size_t count) {
  Problem problem = random_problem(random, DType::bf16, count);
  std::fill(problem.m.begin(), problem.m.end(), 0.0F);
  std::fill(problem.v.begin(), problem.v.end(), 0.0F);
  return problem;
}

std::vector<std::byte> random_gradient(Random& random, std::size_t count) {
  std::normal_distribution<float> normal(0, 0.01F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return to_gradients(values, DType::bf16);
}

const Kernel& best(StateFormat format) {
  return find_kernel(best_isa(), DType::bf16, DType::bf16, format);
}

TEST(SplitFormat, IsTheFp32FormatWithBf16ParametersBitForBit) {
  constexpr std::size_t kCount = 3000;
  Random random = seeded_random();
  for (const Isa isa : runnable_isas()) {
    const Problem start = without_moments(random, kCount);
    const Kernel& split_kernel = find_kernel(isa, DType::bf16, DType::bf16, StateFormat::split);
    const Kernel& fp32_kernel = find_kernel(isa, DType::bf16, DType::bf16);
    Stepper split(split_kernel, start), fp32(fp32_kernel, start);
    for (std::uint64_t t = 1; t <= 50; ++t) {
      const std::vector<std::byte> gradient = random_gradient(random, kCount);
      const UpdateScalars s = make_scalars({.lr = 3e-3, .weight_decay = 0.1}, t, 0.5);
      split.step(s, gradient);
      fp32.step(s, gradient);
    }
    EXPECT_TRUE(same_bits(split.outcome(), fp32.outcome(), kCount, DType::bf16)) << name_of(isa);
  }
}

TEST(Bf16Format, VarianceDecaysAsItShouldWhenGradientsAreZero) {
  // To nearest it would not move: one step of 0.999 is an eighth of bf16's last place.
  constexpr std::size_t kCount = 4096;
  Random random = seeded_random();
  Problem start = without_moments(random, kCount);
  std::fill(start.v.begin(), start.v.end(), 1e-4F);
  Stepper stepper(best(StateFormat::bf16), start);
  const std::vector<std::byte> zero(2 * kCount);
  for (std::uint64_t t = 1; t <= 2000; ++t) {
    stepper.step(make_scalars({.lr = 0, .rounding_seed = random()}, t, 1), zero);
  }
  const Outcome got = stepper.outcome();
  double sum = 0;
  for (const float v : got.v) sum += v;
  const double exact = static_cast<double>(from_bf16(to_bf16(1e-4F))) * std::pow(0.999, 2000);
  EXPECT_NEAR(sum / kCount / exact, 1, 0.02);
}

/// Root mean square distance of two masters, in units of the distance moved.
double relative_distance(const Outcome& a, const Outcome& b, const Problem& start) {
  double apart = 0;
  double moved = 0;
  for (std::size_t i = 0; i < a.master.size(); ++i) {
    apart += std::pow(a.master[i] - b.master[i], 2);
    moved += std::pow(b.master[i] - start.master[i], 2);
  }
  return std::sqrt(apart / moved);
}

TEST(RoundedFormats, FollowFp32CloselyOverManySteps) {
  // Gradients with a drift per element, so that the masters have somewhere to go. The distances are
  // those of independent rounding errors: bf16 has 2^-9 a step in each moment, int8 about 2^-7.
  constexpr std::size_t kCount = 4096;
  Random random = seeded_random();
  const Problem start = without_moments(random, kCount);
  Stepper fp32(best(StateFormat::fp32), start), bf16(best(StateFormat::bf16), start),
      int8(best(StateFormat::int8), start);
  std::normal_distribution<float> normal;
  std::vector<float> drift(kCount), gradient(kCount);
  for (float& d : drift) d = 0.5F * normal(random);
  for (std::uint64_t t = 1; t <= 500; ++t) {
    for (std::size_t i = 0; i < kCount; ++i) gradient[i] = 0.01F * (drift[i] + normal(random));
    const std::vector<std::byte> bytes = to_gradients(gradient, DType::bf16);
    const UpdateScalars s = make_scalars({.rounding_seed = 11}, t, 1);
    fp32.step(s, bytes);
    bf16.step(s, bytes);
    int8.step(s, bytes);
  }
  EXPECT_LT(relative_distance(bf16.outcome(), fp32.outcome(), start), 0.01);
  EXPECT_LT(relative_distance(int8.outcome(), fp32.outcome(), start), 0.05);
}

TEST(Bf16Format, RoundingDependsOnSeedStepBlockAndIndexAlone) {
  constexpr std::size_t kCount = 1000;
  Random random = seeded_random();
  const Problem problem = random_problem(random, DType::bf16, kCount);
  const Kernel& kernel = best(StateFormat::bf16);
  const auto moments = [&](std::uint64_t seed, std::uint64_t t) {
    // Equal constants whatever t is, so that only the rounding can differ.
    const UpdateScalars s =
        make_scalars({.lr = 0, .bias_correction = false, .rounding_seed = seed}, t, 1);
    return run(kernel, s, problem, kCount).m;
  };
  EXPECT_EQ(moments(1, 5), moments(1, 5));
  EXPECT_NE(moments(1, 5), moments(2, 5));
  EXPECT_NE(moments(1, 5), moments(1, 6));
  EXPECT_NE(moments(1, 5), moments(1, (std::uint64_t{1} << 32) + 5));
}

TEST(Bf16Format, RoundingGoesOnWhereTheIndexPassesTwoToThe32) {
  constexpr std::size_t kCount = 3000;
  constexpr std::uint64_t kIndex = (std::uint64_t{1} << 32) - 1000;
  Random random = seeded_random();
  const Problem problem = random_problem(random, DType::bf16, kCount);
  const StateLayout layout = make_layout(StateFormat::bf16, kCount);
  const UpdateScalars s = make_scalars({}, 3, 1);
  std::vector<std::vector<std::byte>> results;
  for (const Isa isa : runnable_isas()) {
    const Kernel& kernel = find_kernel(isa, DType::bf16, DType::bf16, StateFormat::bf16);
    std::vector<std::byte> state(layout.bytes), parameters(2 * kCount);
    pack_state(layout, {.master = problem.master, .m = problem.m, .v = problem.v}, state.data(),
               parameters.data());
    UpdateRange range = tile_range(layout, state.data(), state.data(), problem.gradient.data(),
                                   parameters.data(), parameters.data());
    range.index = kIndex;
    kernel.update(s, slice(kernel, range, 0, 1500));
    kernel.update(s, slice(kernel, range, 1500, kCount - 1500));
    results.push_back(state);
    EXPECT_EQ(results.back(), results.front()) << name_of(isa);
  }
}

TEST(Int8Format, ASpoiledMomentSpoilsItsBlockInEveryKernelAndNoOther) {
  Random random = seeded_random();
  const std::vector<std::byte> gradient = random_gradient(random, 2 * kQuantizationBlock);
  for (const float spoiled : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Problem problem = without_moments(random, 2 * kQuantizationBlock);
    problem.m[5] = spoiled;
    for (const Isa isa : isas()) {
      if (!supported(isa)) continue;
      Stepper stepper(find_kernel(isa, DType::bf16, DType::bf16, StateFormat::int8), problem);
      EXPECT_TRUE(std::isnan(stepper.outcome().m[0])) << name_of(isa);
      stepper.step(make_scalars({}, 2, 1), gradient);
      const Outcome after = stepper.outcome();
      for (std::size_t i = 0; i < after.master.size(); ++i) {
        ASSERT_EQ(std::isfinite(after.master[i]), i >= kQuantizationBlock) << name_of(isa) << i;
      }
    }
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::test::formats_over_steps_test
