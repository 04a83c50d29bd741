// Where state lies, and that what is packed comes back.
#include "cpu_adam/state_format.hpp"

#include <thread>

#include "cpu_adam/codec.hpp"
#include "runtime/base/units.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::state_format_test {
namespace {

constexpr StateFormat kFormats[] = {StateFormat::fp32, StateFormat::split, StateFormat::bf16,
                                    StateFormat::int8};

std::string format_name(const ::testing::TestParamInfo<StateFormat>& info) {
  return std::string(name_of(info.param));
}

class Format : public ::testing::TestWithParam<StateFormat> {};

TEST_P(Format, LaysArraysOneAfterAnotherOnCacheLinesAndLeavesOnPages) {
  for (const std::size_t count : {0U, 1U, 255U, 256U, 4096U, 5000U, 1U << 21}) {
    const StateLayout layout = make_layout(GetParam(), count);
    const std::size_t master = count * master_size(GetParam());
    const std::size_t moment = count * moment_size(GetParam());
    EXPECT_EQ(layout.master, 0U);
    EXPECT_GE(layout.m, layout.master + master);
    EXPECT_GE(layout.v, layout.m + moment);
    EXPECT_GE(layout.scales, layout.v + moment);
    EXPECT_GE(layout.parameters, layout.scales);
    EXPECT_EQ(layout.parameters, layout.bytes);
    for (const std::size_t at : {layout.m, layout.v, layout.scales}) {
      EXPECT_EQ(at % (count % kLeafParameters == 0 ? 4096 : 64), 0U) << count;
    }
    EXPECT_EQ(layout.bytes % 4096, 0U);
    EXPECT_EQ(layout.disk_bytes % 4096, 0U);
    EXPECT_GE(layout.disk_bytes,
              layout.bytes + (needs_parameters(GetParam()) ? 2 * count : std::size_t{0}));
  }
}

TEST_P(Format, StaggersItsArraysModuloHugePages) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  constexpr std::size_t kLeast = std::size_t{16} << 10;
  for (const std::size_t count : {1U << 20, 1U << 21, (1U << 21) + 4096, 1U << 26, 100'000'000U}) {
    const StateLayout layout = make_layout(GetParam(), count);
    std::vector<std::size_t> starts = {layout.master, layout.m, layout.v};
    if (GetParam() == StateFormat::int8) starts.push_back(layout.scales);
    for (std::size_t a = 0; a < starts.size(); ++a) {
      for (std::size_t b = a + 1; b < starts.size(); ++b) {
        const std::size_t apart = (starts[b] - starts[a]) % kHuge;
        EXPECT_GE(apart, kLeast) << count << ": arrays " << a << " and " << b;
        EXPECT_LE(apart, kHuge - kLeast) << count << ": arrays " << a << " and " << b;
      }
    }
  }
}

TEST_P(Format, HoldsTheBytesAParameterThatTheDocumentationSays) {
  // The shorter tile is within a huge page, where nothing lies between the arrays.
  for (const std::size_t count : {std::size_t{1} << 16, std::size_t{2} << 20}) {
    const double expected[] = {12, 10, 6, 4 + 1.0 / 32};
    const double arrays =
        expected[static_cast<std::size_t>(GetParam())] * static_cast<double>(count);
    const std::size_t gaps = GetParam() == StateFormat::int8 ? 3 : 2;
    const std::size_t between = count == 1 << 16 ? 0 : gaps * 16384;
    const std::size_t bytes = static_cast<std::size_t>(arrays) + between;
    const std::size_t pages = (bytes + 4095) / 4096;
    EXPECT_EQ(make_layout(GetParam(), count).bytes, pages * 4096);
  }
}

TEST_P(Format, GivesBackWhatWasPackedAndPacksItAgainToTheSameBytes) {
  Random random = seeded_random();
  for (const std::size_t count : {0U, 1U, 300U, 5000U}) {
    Problem problem = random_problem(random, DType::bf16, count);
    // The signed map has 1 and not -1: a negative largest moment comes back 0.7 % smaller.
    if (GetParam() == StateFormat::int8) {
      for (float& m : problem.m) m = std::abs(m);
    }
    const StateLayout layout = make_layout(GetParam(), count);
    std::vector<std::byte> state(layout.bytes), again(layout.bytes, std::byte{0xff});
    std::vector<std::byte> parameters(2 * count), parameters_again(2 * count);
    pack_state(layout, {.master = problem.master, .m = problem.m, .v = problem.v}, state.data(),
               parameters.data());
    std::vector<float> master(count), m(count), v(count);
    unpack_state(layout, state.data(), parameters.data(), {.master = master, .m = m, .v = v});
    EXPECT_EQ(master, problem.master);
    if (moment_size(GetParam()) == 4) {
      EXPECT_EQ(m, problem.m);
      EXPECT_EQ(v, problem.v);
    }
    pack_state(layout, {.master = master, .m = m, .v = v}, again.data(), parameters_again.data());
    EXPECT_TRUE(again == state);
    EXPECT_TRUE(parameters_again == parameters);
  }
}

TEST_P(Format, StartsWithoutMoments) {
  const std::vector<float> master(1000, 0.25F);
  const StateLayout layout = make_layout(GetParam(), master.size());
  std::vector<std::byte> state(layout.bytes, std::byte{0xff}), parameters(2 * master.size());
  pack_state(layout, {.master = master, .m = {}, .v = {}}, state.data(), parameters.data());
  std::vector<float> m(master.size(), 1.0F), v(master.size(), 1.0F);
  unpack_state(layout, state.data(), parameters.data(), {.master = {}, .m = m, .v = v});
  EXPECT_EQ(m, std::vector<float>(master.size(), 0.0F));
  EXPECT_EQ(v, m);
}

TEST_P(Format, LeavesNothingOfAPartsMomentsThatEnd) {
  Random random = seeded_random();
  constexpr std::size_t kCount = 4 * kQuantizationBlock;
  const Problem problem = random_problem(random, DType::bf16, kCount);
  const StateLayout whole = make_layout(GetParam(), kCount);
  const StateLayout part = part_of(whole, kQuantizationBlock, 2 * kQuantizationBlock);
  const std::span<const float> masters =
      std::span(problem.master).subspan(kQuantizationBlock, part.count);
  for (const bool keeps_master : {false, true}) {
    std::vector<std::byte> before(whole.bytes), state(whole.bytes), parameters(2 * kCount);
    std::byte* const of_part = parameters.data() + 2 * kQuantizationBlock;
    pack_state(whole, {.master = problem.master, .m = {}, .v = {}}, before.data(),
               parameters.data());
    pack_state(whole, {.master = problem.master, .m = {}, .v = {}}, state.data(),
               parameters.data());
    const std::vector<float> moments(part.count, 3.0F);
    pack_state(part, {.master = masters, .m = moments, .v = moments}, state.data(), of_part);
    EXPECT_FALSE(state == before);
    if (keeps_master) {
      pack_moments(part, {}, state.data());
    } else {
      pack_state(part, {.master = masters, .m = {}, .v = {}}, state.data(), of_part);
    }
    EXPECT_TRUE(state == before);
  }
}

TEST_P(Format, CopiesPartsOfTilesThatAreCutOtherwiseBitByBit) {
  constexpr std::size_t kCount = 8 * kQuantizationBlock, kPart = 3 * kQuantizationBlock;
  const StateLayout whole = make_layout(GetParam(), kCount), part = make_layout(GetParam(), kPart);
  std::vector<std::byte> source(whole.disk_bytes), parts(part.disk_bytes), again(whole.disk_bytes);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 37 % 251);
  for (std::size_t first = 0; first < kCount; first += kPart) {
    const std::size_t count = std::min(kPart, kCount - first);
    copy_state(part_of(whole, first, count), source.data(), part_of(part, 0, count), parts.data());
    copy_state(part_of(part, 0, count), parts.data(), part_of(whole, first, count), again.data());
  }
  std::vector<float> expected(3 * kCount), actual(3 * kCount);
  const auto unpack = [&](const std::vector<std::byte>& slot, std::span<float> wide) {
    unpack_state(whole, slot.data(), slot.data() + whole.parameters,
                 {wide.first(kCount), wide.subspan(kCount, kCount), wide.last(kCount)});
  };
  unpack(source, expected);
  unpack(again, actual);
  EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)), 0);
}

TEST_P(Format, HasANameThatParsesBack) {
  EXPECT_EQ(parse_state_format(name_of(GetParam())), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, Format, ::testing::ValuesIn(kFormats), format_name);

TEST(StateFormat, RefusesAnUnknownNameAndMomentsOfAnotherLength) {
  EXPECT_THROW(static_cast<void>(parse_state_format("fp8")), Error);
  const StateLayout layout = make_layout(StateFormat::fp32, 4);
  std::vector<std::byte> state(layout.bytes);
  const std::vector<float> four(4), three(3);
  EXPECT_THROW(pack_state(layout, {.master = four, .m = three, .v = {}}, state.data(), nullptr),
               Error);
}

/// Masters whose bits do not come back from parameter and remainder, among `first`, `first` +
/// stride,
/// ... below `last`. NaN may change its payload.
std::uint64_t lost_masters(std::uint64_t first, std::uint64_t last, std::uint64_t stride) {
  std::uint64_t lost = 0;
  for (std::uint64_t bits = first; bits < last; bits += stride) {
    const auto master = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const float back = join_master(parameter_to_bf16(master), remainder_of(master));
    const auto back_bits = std::bit_cast<std::uint32_t>(back);
    const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
    const bool back_nan = (back_bits & 0x7fffffffU) > 0x7f800000U;
    lost += static_cast<std::uint64_t>(nan ? !back_nan : back_bits != bits);
  }
  return lost;
}

TEST(SplitMaster, ComesBackForEveryBitPattern) {
  // All 2^32 with SPILLWAY_TEST_ALL_MASTERS (some seconds); else a coprime stride and the edges.
  const bool all = std::getenv("SPILLWAY_TEST_ALL_MASTERS") != nullptr;
  constexpr std::uint64_t kAll = std::uint64_t{1} << 32;
  const std::uint64_t stride = all ? 1 : 251;
  std::uint64_t lost[2] = {};
  std::thread upper([&] { lost[1] = lost_masters(kAll / 2, kAll, stride); });
  lost[0] = lost_masters(0, kAll / 2, stride);
  upper.join();
  EXPECT_EQ(lost[0] + lost[1], 0U);
  for (const std::uint64_t edge : {0x7f7f0000ULL, 0x7f800000ULL, 0xff7f0000ULL, 0x00000000ULL}) {
    EXPECT_EQ(lost_masters(edge, edge + 0x20000, 1), 0U);
  }
}

TEST(SplitMaster, ComesBackFromEveryKernelThatChangesNothing) {
  // lr = 0: the update is the identity on masters in the normal range.
  const std::uint32_t highs[] = {0x0080, 0x3f80, 0xbf7f, 0x7f7f, 0xff7f, 0x4049};
  for (const Kernel& kernel : runnable_kernels()) {
    if (kernel.format != StateFormat::split || kernel.gradient_dtype != DType::bf16) continue;
    for (const std::uint32_t high : highs) {
      Random random(high);
      Problem problem = random_problem(random, DType::bf16, 1 << 16);
      for (std::uint32_t low = 0; low < 1 << 16; ++low) {
        problem.master[low] = std::bit_cast<float>(high << 16 | low);
      }
      const Outcome got = run(kernel, make_scalars({.lr = 0}, 1, 1), problem, 1 << 16);
      ASSERT_EQ(got.master, problem.master) << kernel.name;
    }
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::test::state_format_test
