// Parameter groups and sums of gradients: the same bits as the plain way.
#include "cpu_adam/gradient_norm.hpp"
#include "cpu_adam/update.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::groups_test {
namespace {

constexpr std::uint64_t kIndex = 3 * kQuantizationBlock;  // where in its block the range starts
constexpr std::size_t kCount = 5000;
constexpr std::uint64_t kLaterIndex = 5 * kLeafParameters + kIndex;

/// A range over one packed state, in place.
struct Tile {
  Tile(const Kernel& kernel, const Problem& problem)
      : layout(make_layout(kernel.format, problem.master.size())),
        state(layout.bytes),
        parameters(problem.master.size() * size_of(kernel.parameter_dtype)) {
    pack_state(layout, {.master = problem.master, .m = problem.m, .v = problem.v}, state.data(),
               parameters.data());
    gradient = problem.gradient;
  }
  UpdateRange range(std::uint64_t index = kIndex) {
    UpdateRange whole = tile_range(layout, state.data(), state.data(), gradient.data(),
                                   parameters.data(), parameters.data());
    whole.index = index;
    return whole;
  }
  [[nodiscard]] Outcome outcome() const {
    const std::size_t n = layout.count;
    Outcome result{.master = std::vector<float>(n),
                   .m = std::vector<float>(n),
                   .v = std::vector<float>(n),
                   .parameters = parameters};
    unpack_state(layout, state.data(), parameters.data(),
                 {.master = result.master, .m = result.m, .v = result.v});
    return result;
  }
  StateLayout layout;
  std::vector<std::byte> state, parameters, gradient;
};

class Groups : public ::testing::TestWithParam<Kernel> {};

TEST_P(Groups, OfEqualScalarsAreOneUpdateWhereverTheBoundariesLie) {
  Random random = seeded_random();
  const Problem problem = random_problem(random, GetParam().gradient_dtype, kCount);
  const UpdateScalars s = make_scalars({.weight_decay = 0.1, .rounding_seed = 9}, 4, 0.5);
  Tile once(GetParam(), problem);
  GetParam().update(s, once.range());
  std::uniform_int_distribution<std::uint64_t> anywhere(0, kIndex + kCount);
  for (int round = 0; round < 20; ++round) {
    std::vector<ParameterGroup> groups;
    for (int k = 0; k < round; ++k) groups.push_back({.end = anywhere(random), .scalars = s});
    groups.push_back({.end = kIndex + kCount + 7, .scalars = s});
    std::sort(groups.begin(), groups.end(),
              [](const auto& a, const auto& b) { return a.end < b.end; });
    Tile cut(GetParam(), problem);
    update(GetParam(), groups, cut.range());
    ASSERT_TRUE(same_bits(cut.outcome(), once.outcome(), kCount, GetParam().parameter_dtype))
        << "round " << round;
  }
}

TEST_P(Groups, HaveTheirOwnConstants) {
  Random random = seeded_random();
  const Problem problem = random_problem(random, GetParam().gradient_dtype, kCount);
  const UpdateScalars decayed = make_scalars({.lr = 0.1, .weight_decay = 0.5}, 4, 1);
  const UpdateScalars frozen = make_scalars({.lr = 0}, 4, 1);
  const std::uint64_t boundary = kIndex + 1000;  // inside a quantization block
  Tile both(GetParam(), problem), all(GetParam(), problem);
  update(GetParam(),
         std::vector<ParameterGroup>{{.end = boundary, .scalars = decayed},
                                     {.end = kIndex + kCount, .scalars = frozen}},
         both.range());
  GetParam().update(decayed, all.range());
  const Outcome got = both.outcome();
  const Outcome one = all.outcome();
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(got.master[i], i < 1000 ? one.master[i] : problem.master[i]) << i;
  }
}

TEST_P(Groups, SumOfGradientsIsAccumulationThenUpdate) {
  Random random = seeded_random();
  const DType dtype = GetParam().gradient_dtype;
  const Problem problem = random_problem(random, dtype, kCount);
  const std::vector<std::byte> second = random_problem(random, dtype, kCount).gradient;
  const std::vector<std::byte> third = random_problem(random, dtype, kCount).gradient;
  const UpdateScalars s = make_scalars({}, 4, 0.25);
  const std::vector<ParameterGroup> groups{{.end = kLaterIndex + kCount, .scalars = s}};
  const void* const more[] = {second.data(), third.data()};
  Tile fused(GetParam(), problem);
  update(GetParam(), groups, fused.range(kLaterIndex), more);

  std::vector<float> sum(kCount);
  accumulate(Isa::scalar, dtype, problem.gradient.data(), sum, true);
  accumulate(Isa::scalar, dtype, second.data(), sum, false);
  accumulate(Isa::scalar, dtype, third.data(), sum, false);
  Tile apart(GetParam(), problem);
  UpdateRange range = apart.range(kLaterIndex);
  range.gradient = sum.data();
  find_kernel(Isa::scalar, DType::fp32, GetParam().parameter_dtype, GetParam().format)
      .update(s, range);
  EXPECT_TRUE(same_bits(fused.outcome(), apart.outcome(), kCount, GetParam().parameter_dtype));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Groups, ::testing::ValuesIn(runnable_kernels()), kernel_name);

TEST(GroupsDeathTest, ParameterWithoutAGroupIsABrokenInvariant) {
  const Kernel& kernel = find_kernel(Isa::scalar, DType::fp32, DType::fp32);
  Random random(1);
  Tile tile(kernel, random_problem(random, DType::fp32, 10));
  const std::vector<ParameterGroup> groups{{.end = kIndex + 5, .scalars = make_scalars({}, 1, 1)}};
  EXPECT_DEATH(update(kernel, groups, tile.range()), "belong to no group");
}

}  // namespace
}  // namespace spillway::cpu_adam::test::groups_test
