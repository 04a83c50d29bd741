// The limit that the update is measured against, and the choice of the prefetch distance.
#include "cpu_adam/traffic.hpp"

#include <map>

#include "cpu_adam/calibration.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::traffic_test {
namespace {

TEST(Traffic, CountsTheBytesThatTheTheorySays) {
  const auto bytes = [](StateFormat format) {
    return bytes_per_parameter(format, DType::bf16, DType::bf16);
  };
  EXPECT_EQ(bytes(StateFormat::fp32), 28);
  EXPECT_EQ(bytes(StateFormat::split), 26);
  EXPECT_EQ(bytes(StateFormat::bf16), 18);
  EXPECT_EQ(bytes(StateFormat::int8), 14.0625);
}

TEST(Traffic, PassCopiesTheStateAndLeavesItInPlace) {
  constexpr std::size_t kCount = 4096;
  for (const Kernel& kernel : runnable_kernels()) {
    Random random(3);
    const Problem problem = random_problem(random, kernel.gradient_dtype, kCount);
    const StateLayout layout = make_layout(kernel.format, kCount);
    std::vector<std::byte> state(layout.bytes), other(layout.bytes);
    std::vector<std::byte> parameters(4 * kCount), other_parameters(4 * kCount);
    pack_state(layout, {.master = problem.master, .m = problem.m, .v = problem.v}, state.data(),
               parameters.data());
    const std::vector<std::byte> before = state;
    move_traffic(kernel, tile_range(layout, state.data(), state.data(), problem.gradient.data(),
                                    parameters.data(), parameters.data()));
    EXPECT_EQ(state, before) << kernel.name;
    move_traffic(kernel, tile_range(layout, state.data(), other.data(), problem.gradient.data(),
                                    parameters.data(), other_parameters.data()));
    EXPECT_EQ(other, before) << kernel.name;
  }
}

TEST(Calibration, TakesTheFastestDistanceAndNoneWithoutAGain) {
  std::map<std::size_t, int> asked;
  const auto choose = [&asked](std::size_t fast, double gain) {
    return calibrate_prefetch([&asked, fast, gain](std::size_t distance) {
      // Every third measurement is disturbed; the median does not mind.
      const double noise = ++asked[distance] % 3 == 0 ? 5.0 : 1.0;
      return (distance == fast ? 1 - gain : 1.0) * noise;
    });
  };
  EXPECT_EQ(choose(512, 0.3), 512U);
  EXPECT_EQ(choose(2048, 0.05), 2048U);
  EXPECT_EQ(choose(512, 0.02), 0U);
  EXPECT_EQ(choose(0, 0.1), 0U);
}

}  // namespace
}  // namespace spillway::cpu_adam::test::traffic_test
