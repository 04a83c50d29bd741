// Nothing but the inputs changes a bit of the update: not the kernel, the length, the alignment,
// the tiles, the slot that is written nor the prefetch distance.
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::update_bits_test {
namespace {

class UpdateBits : public ::testing::TestWithParam<Kernel> {
 protected:
  static UpdateScalars scalars(DecayMode mode) {
    return make_scalars({.lr = 3e-3, .weight_decay = 0.1, .decay_mode = mode}, 7, 0.37);
  }
  /// By the plain kernel, every array aligned.
  static Outcome expected(const Problem& problem, DecayMode mode) {
    return run(plain_kernel(GetParam()), scalars(mode), problem, problem.master.size());
  }
};

TEST_P(UpdateBits, EqualThePlainKernelForEveryTailAndMisalignment) {
  // Past the longest head and one whole visit.
  const bool narrow =
      GetParam().format == StateFormat::int8 || GetParam().format == StateFormat::bf16;
  const std::size_t longest = narrow ? 256 + 40 : 64 + 64 + 32;
  Random random = seeded_random();
  std::uniform_int_distribution<std::size_t> shift(0, 63);
  for (const DecayMode mode : {DecayMode::decoupled, DecayMode::l2}) {
    const Problem problem = random_problem(random, GetParam().gradient_dtype, longest);
    Outcome whole = expected(problem, mode);
    for (std::size_t count = 0; count <= longest; ++count) {
      // The scales of a quantization block depend on all of it.
      if (GetParam().format == StateFormat::int8) {
        whole = run(plain_kernel(GetParam()), scalars(mode), problem, count);
      }
      const std::size_t step = count <= 64 ? 1 : 7;
      for (std::size_t misalignment = 0; misalignment < 64; misalignment += step) {
        const Layout layout{.misalignments = {shift(random), shift(random), shift(random),
                                              shift(random), misalignment},
                            .in_place = misalignment % 2 == 0};
        const Outcome got = run(GetParam(), scalars(mode), problem, count, layout);
        ASSERT_TRUE(same_bits(got, whole, count, GetParam().parameter_dtype))
            << "count " << count << ", parameters misaligned by " << misalignment;
      }
    }
  }
}

TEST_P(UpdateBits, DoNotDependOnTilesSlotsNorPrefetch) {
  constexpr std::size_t kCount = 20011;
  Random random = seeded_random();
  const Problem problem = random_problem(random, GetParam().gradient_dtype, kCount);
  const Outcome whole = expected(problem, DecayMode::decoupled);
  for (int round = 0; round < 8; ++round) {
    Layout layout{.in_place = round % 2 == 0,
                  .prefetch_distance = round % 4 < 2 ? std::size_t{0} : std::size_t{512}};
    std::uniform_int_distribution<std::size_t> cut(0, kCount);
    for (int i = 0; i < 5 * round; ++i) layout.cuts.push_back(cut(random));
    std::sort(layout.cuts.begin(), layout.cuts.end());
    const Outcome got = run(GetParam(), scalars(DecayMode::decoupled), problem, kCount, layout);
    ASSERT_TRUE(same_bits(got, whole, kCount, GetParam().parameter_dtype)) << "round " << round;
  }
}

TEST_P(UpdateBits, DoNotDependOnTilesThatStartOnCacheLines) {
  // From the fifth element on, arrays of 16 bits lie on lines; a visit of whole indices does not.
  constexpr std::size_t kCount = 5000;
  Random random = seeded_random();
  const Problem problem = random_problem(random, GetParam().gradient_dtype, kCount);
  const Outcome whole = expected(problem, DecayMode::decoupled);
  const Layout layout{.misalignments = {54, 54, 54, 54, 54}, .in_place = false, .cuts = {5}};
  const Outcome got = run(GetParam(), scalars(DecayMode::decoupled), problem, kCount, layout);
  EXPECT_TRUE(same_bits(got, whole, kCount, GetParam().parameter_dtype));
}

TEST_P(UpdateBits, OfStateAreTheSameWhenNoParameterIsWritten) {
  if (needs_parameters(GetParam().format)) return;  // the parameters are part of the state
  constexpr std::size_t kCount = 1000;
  Random random = seeded_random();
  const Problem problem = random_problem(random, GetParam().gradient_dtype, kCount);
  const Outcome whole = expected(problem, DecayMode::decoupled);
  const Outcome got =
      run(GetParam(), scalars(DecayMode::decoupled), problem, kCount, {.parameters = false});
  EXPECT_TRUE(same_bits(got, whole, kCount, GetParam().parameter_dtype, false));
  // The parameters' place was handed to nobody: it still has its mark.
  EXPECT_TRUE(std::all_of(got.parameters.begin(), got.parameters.end(),
                          [](std::byte byte) { return byte == std::byte{0xa5}; }));
}

TEST_P(UpdateBits, OfParametersAreThoseOfACastOfTheMaster) {
  constexpr std::size_t kCount = 4096;
  Random random = seeded_random();
  const Problem problem = random_problem(random, GetParam().gradient_dtype, kCount);
  const Outcome got = run(GetParam(), scalars(DecayMode::decoupled), problem, kCount);
  std::vector<std::byte> cast(got.parameters.size());
  cast_parameters(GetParam().isa, GetParam().parameter_dtype, got.master.data(), cast.data(),
                  kCount);
  EXPECT_EQ(got.parameters, cast);
}

TEST_P(UpdateBits, OfEveryGradientValueEqualThePlainKernel) {
  // Every 16-bit pattern, NaN and infinity among them; in fp32 as the upper half of random bits.
  constexpr std::size_t kCount = 65536;
  Random random = seeded_random();
  Problem problem = random_problem(random, GetParam().gradient_dtype, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const std::size_t size = size_of(GetParam().gradient_dtype);
    std::memcpy(problem.gradient.data() + size * i + size - 2, &bits, 2);
  }
  const Outcome whole = expected(problem, DecayMode::decoupled);
  const Outcome got = run(GetParam(), scalars(DecayMode::decoupled), problem, kCount);
  EXPECT_TRUE(same_bits(got, whole, kCount, GetParam().parameter_dtype));
}

INSTANTIATE_TEST_SUITE_P(Kernels, UpdateBits, ::testing::ValuesIn(runnable_kernels()), kernel_name);

TEST(KernelTable, HasEveryCombinationOnceUnderItsOwnName) {
  std::vector<std::string> names;
  for (const Isa isa : isas()) {
    for (const char* formats :
         {"fp32 fp32", "fp32 bf16", "fp32 fp16", "split bf16", "bf16 bf16", "int8 bf16"}) {
      const std::string pair = formats;
      const std::string format = pair.substr(0, pair.find(' '));
      const std::string parameter = pair.substr(pair.find(' ') + 1);
      for (const DType gradient : {DType::fp32, DType::bf16, DType::fp16}) {
        names.push_back(std::string(name_of(isa)) + "_" + format + "_" +
                        std::string(name_of(gradient)) + "_" + parameter);
        if (supported(isa)) {
          EXPECT_EQ(
              find_kernel(isa, gradient, parse_dtype(parameter), parse_state_format(format)).name,
              names.back());
        }
      }
    }
  }
  std::vector<std::string> listed;
  for (const Kernel& kernel : kernels()) listed.emplace_back(kernel.name);
  EXPECT_EQ(listed, names);
}

TEST(KernelTable, ChoosesTheBestInstructionSetAndRefusesWhatTheCpuLacks) {
  EXPECT_TRUE(supported(Isa::scalar));
  EXPECT_TRUE(supported(best_isa()));
  for (const Isa isa : isas()) {
    EXPECT_EQ(parse_isa(name_of(isa)), isa);
    if (supported(isa)) {
      EXPECT_GE(best_isa(), isa);
      continue;
    }
    try {
      static_cast<void>(find_kernel(isa, DType::bf16, DType::bf16));
      FAIL() << "a kernel for " << name_of(isa) << " was handed out";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_supported);
    }
  }
}

TEST(KernelTable, RefusesAFormatWithParametersThatItCannotHold) {
  try {
    static_cast<void>(find_kernel(Isa::scalar, DType::fp16, DType::fp16, StateFormat::split));
    FAIL() << "split was combined with fp16 parameters";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("bf16"), std::string::npos);
  }
}

TEST(KernelTable, RefusesAnUnknownNameAndListsTheKnownOnes) {
  try {
    static_cast<void>(parse_isa("sse9"));
    FAIL() << "an unknown name was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("avx512"), std::string::npos);
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::test::update_bits_test
