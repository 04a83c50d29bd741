// What cpu_adam/cuda/device_update.hpp promises, for whatever runs it: the bits of the CPU's
// kernels. A test instantiates it with a Device of device_update_case.hpp.
#pragma once

#include "cpu_adam/gradient_norm.hpp"
#include "tests/cpu_adam/device_update_case.hpp"

namespace spillway::cpu_adam::test {

template <class Device>
class DeviceUpdate : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = device_.unavailable();
    if (!reason.empty()) GTEST_SKIP() << "this machine has no usable GPU: " << reason;
  }
  Random random_ = seeded_random();
  Device device_;
};
TYPED_TEST_SUITE_P(DeviceUpdate);

TYPED_TEST_P(DeviceUpdate, HasTheBitsOfTheCpuForEveryFormatTypeAndOptimizer) {
  for (const cuda::RangeTypes& types : all_range_types()) {
    const Problem problem = random_problem(this->random_, types.gradient, 3001);
    for (const AdamOptions& options : all_optimizers()) {
      const DeviceCase c{.types = types, .groups = one_group(options)};
      ASSERT_NO_FATAL_FAILURE(expect_bits_of_cpu(this->device_, c, problem));
    }
  }
}

TYPED_TEST_P(DeviceUpdate, GroupsEndAnywhereAlsoInsideAQuantizationBlock) {
  constexpr std::size_t kCount = 5000;
  for (const cuda::RangeTypes& types : all_range_types()) {
    const Problem problem = random_problem(this->random_, types.gradient, kCount);
    for (AdamOptions options : all_optimizers()) {
      DeviceCase c{.types = types, .groups = {}};
      // Before the range, twice in one quantization block, nothing, at a block's end, in the last.
      for (const std::int64_t end : {-5, 1003, 1011, 1011, 2560, 4990, 9000}) {
        options.lr *= 1.5;
        options.weight_decay = end % 3 == 0 ? 0 : 0.1;
        c.groups.push_back({.end = c.index + static_cast<std::uint64_t>(end),
                            .scalars = make_scalars(options, 4, 0.5)});
      }
      ASSERT_NO_FATAL_FAILURE(expect_bits_of_cpu(this->device_, c, problem));
    }
  }
}

TYPED_TEST_P(DeviceUpdate, TakesAnyCountAndEveryAlignmentOfElements) {
  for (const cuda::RangeTypes& types : all_range_types()) {
    for (const std::size_t count : {0U, 1U, 7U, 8U, 9U, 255U, 256U, 257U, 511U, 4096U}) {
      const Problem problem = random_problem(this->random_, types.gradient, count);
      for (const std::size_t shift : {0U, 1U, 4U}) {
        const DeviceCase c{.types = types,
                           .groups = one_group({.rounding_seed = 3}),
                           .gradient_shift = shift,
                           .parameter_shift = shift == 4 ? std::size_t{0} : shift};
        ASSERT_NO_FATAL_FAILURE(expect_bits_of_cpu(this->device_, c, problem))
            << count << " parameters";
      }
    }
  }
}

TYPED_TEST_P(DeviceUpdate, OutOfPlaceReadsOneSlotAndWritesAnother) {
  for (const cuda::RangeTypes& types : all_range_types()) {
    const Problem problem = random_problem(this->random_, types.gradient, 1000);
    const DeviceCase c{.types = types, .groups = one_group({}), .in_place = false};
    ASSERT_NO_FATAL_FAILURE(expect_bits_of_cpu(this->device_, c, problem));
  }
}

TYPED_TEST_P(DeviceUpdate, FlushesWhatIsBelowTheNormalRange) {
  constexpr std::size_t kSmallOnes = 7;  // none that spoils a quantization block
  for (const cuda::RangeTypes& types : all_range_types()) {
    const Problem problem = special_problem(this->random_, types.gradient, 3000, kSmallOnes);
    for (const AdamOptions& options : all_optimizers()) {
      const DeviceCase c{.types = types, .groups = one_group(options)};
      const Outcome got = unpack(update_on_device(this->device_, c, problem));
      const Outcome want = unpack(update_on_cpu(Isa::scalar, c, problem));
      ASSERT_TRUE(same_bits(got, want, 3000, types.parameter)) << describe(c);
    }
  }
}

TYPED_TEST_P(DeviceUpdate, TreatsValuesThatAreNotFiniteAsTheCpuDoes) {
  for (const cuda::RangeTypes& types : all_range_types()) {
    const Problem problem =
        special_problem(this->random_, types.gradient, 3000, std::size(kSpecialValues));
    for (const AdamOptions& options : all_optimizers()) {
      const DeviceCase c{.types = types, .groups = one_group(options)};
      const Outcome got = unpack(update_on_device(this->device_, c, problem));
      const Outcome want = unpack(update_on_cpu(Isa::scalar, c, problem));
      ASSERT_TRUE(same_bits(got, want, 3000, types.parameter)) << describe(c);
    }
  }
}

TYPED_TEST_P(DeviceUpdate, RoundsStochasticallyByTheIndexAlsoBeyond32Bits) {
  const cuda::RangeTypes types{
      .format = StateFormat::bf16, .gradient = DType::bf16, .parameter = DType::bf16};
  const Problem problem = random_problem(this->random_, types.gradient, 3000);
  for (const std::uint64_t index :
       {std::uint64_t{0}, (std::uint64_t{1} << 32) - 1001, (std::uint64_t{5} << 32) + 17}) {
    const DeviceCase c{.types = types, .groups = one_group({.rounding_seed = 11}), .index = index};
    ASSERT_NO_FATAL_FAILURE(expect_bits_of_cpu(this->device_, c, problem));
  }
}

/// Counts that end in every way, and how far the 16-bit array is shifted.
inline constexpr std::size_t kGradientCounts[] = {0, 1, 7, 8, 31, 33, 511, 4095, 4096, 4097, 20000};

/// Gradients: ordinary ones, every seventh special.
inline std::vector<std::byte> mixed_gradients(Random& random, DType dtype, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] =
        i % 7 == 3 ? kSpecialValues[i % std::size(kSpecialValues)] : random_float(random, 4, 60);
  }
  return to_gradients(values, dtype);
}

TYPED_TEST_P(DeviceUpdate, AccumulatesWithTheBitsOfTheCpu) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::size_t count : kGradientCounts) {
      for (const std::size_t shift : {0U, 1U, 8U}) {
        const auto source = mixed_gradients(this->random_, dtype, count);
        const auto start = mixed_gradients(this->random_, DType::fp32, count);
        std::vector<float> want(count);
        if (count > 0) std::memcpy(want.data(), start.data(), start.size());
        const DeviceArray from(this->device_, std::span(source), shift * size_of(dtype));
        const DeviceArray to(this->device_, std::span(start), shift == 1 ? sizeof(float) : 0);
        for (const bool first : {false, true}) {
          accumulate(Isa::scalar, dtype, source.data(), want, first);
          this->device_.accumulate(dtype, from.address(), to.template address<float>(), count,
                                   first);
          const std::vector<std::byte> got = to.read();
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_TRUE(same(gradient_at(got, DType::fp32, i), want[i])) << i << " of " << count;
          }
        }
      }
    }
  }
}

TYPED_TEST_P(DeviceUpdate, RoundsGradientsWithTheBitsOfTheCpu) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::size_t count : kGradientCounts) {
      for (const std::size_t shift : {0U, 1U, 8U}) {
        const auto bytes = mixed_gradients(this->random_, DType::fp32, count);
        std::vector<float> source(count);
        if (count > 0) std::memcpy(source.data(), bytes.data(), bytes.size());
        std::vector<std::byte> want(count * size_of(dtype));
        round_gradient(Isa::scalar, dtype, source.data(), want.data(), count);
        const DeviceArray from(this->device_, std::span(bytes));
        const std::vector<std::byte> before(want.size(), std::byte{1});
        const DeviceArray to(this->device_, std::span(before), shift * size_of(dtype));
        this->device_.round_gradient(dtype, from.template address<float>(), to.address(), count);
        ASSERT_TRUE(same_bytes(to.read(), want)) << name_of(dtype) << ", " << count;
      }
    }
  }
}

TYPED_TEST_P(DeviceUpdate, SumsSquaresInTheTreeOfTheCpu) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::size_t count : kGradientCounts) {
      std::vector<float> values(count);
      for (float& value : values) value = random_float(this->random_, 4, 140);
      std::vector<std::byte> gradient = to_gradients(values, dtype);
      std::vector<double> want((count + kLeafParameters - 1) / kLeafParameters);
      sum_squares(Isa::scalar, dtype, gradient.data(), count, want);
      const DeviceArray from(this->device_, std::span(gradient), size_of(dtype));
      const std::vector<std::byte> empty(want.size() * sizeof(double), std::byte{1});
      const DeviceArray leaves(this->device_, std::span(empty));
      this->device_.sum_squares(dtype, from.address(), count, leaves.template address<double>());
      ASSERT_TRUE(same_bytes(leaves.read(), std::as_bytes(std::span(want))))
          << name_of(dtype) << ", " << count;
    }
  }
}

TYPED_TEST_P(DeviceUpdate, AGradientThatIsNotFiniteMakesItsLeafSo) {
  std::vector<float> values(3 * kLeafParameters, 1.0F);
  values[kLeafParameters + 77] = std::numeric_limits<float>::infinity();
  values[2 * kLeafParameters + 5] = std::numeric_limits<float>::quiet_NaN();
  const DeviceArray from(this->device_, std::as_bytes(std::span(values)));
  const std::vector<std::byte> empty(3 * sizeof(double), std::byte{1});
  const DeviceArray leaves(this->device_, std::span(empty));
  this->device_.sum_squares(DType::fp32, from.address(), values.size(),
                            leaves.template address<double>());
  double got[3];
  std::memcpy(got, leaves.read().data(), sizeof got);
  EXPECT_EQ(got[0], static_cast<double>(kLeafParameters));
  EXPECT_TRUE(std::isinf(got[1]));
  EXPECT_TRUE(std::isnan(got[2]));
}

REGISTER_TYPED_TEST_SUITE_P(DeviceUpdate, HasTheBitsOfTheCpuForEveryFormatTypeAndOptimizer,
                            GroupsEndAnywhereAlsoInsideAQuantizationBlock,
                            TakesAnyCountAndEveryAlignmentOfElements,
                            OutOfPlaceReadsOneSlotAndWritesAnother,
                            FlushesWhatIsBelowTheNormalRange,
                            TreatsValuesThatAreNotFiniteAsTheCpuDoes,
                            RoundsStochasticallyByTheIndexAlsoBeyond32Bits,
                            AccumulatesWithTheBitsOfTheCpu, RoundsGradientsWithTheBitsOfTheCpu,
                            SumsSquaresInTheTreeOfTheCpu, AGradientThatIsNotFiniteMakesItsLeafSo);

}  // namespace spillway::cpu_adam::test
