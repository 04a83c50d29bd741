// What cpu_adam/cuda/device_update.hpp promises, for whatever runs it: the bits of the CPU's
// kernels. A test instantiates it with a Device:
//
//   std::string unavailable();                              // why it cannot be used, or empty
//   std::byte* allocate(std::size_t size);                  // lives as long as the device
//   void upload(std::byte* target, std::span<const std::byte> source);
//   void download(std::span<std::byte> target, const std::byte* source);
//   and the functions of device_update.hpp, without the stream
#pragma once

#include <limits>

#include "cpu_adam/cuda/device_update.hpp"
#include "cpu_adam/gradient_norm.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test {

inline constexpr std::size_t kDeviceGuard = 256;

/// A copy of `bytes` on the device, `shift` bytes after an aligned address, between guard bytes.
template <class Device>
class DeviceArray {
 public:
  DeviceArray(Device& device, std::span<const std::byte> bytes, std::size_t shift = 0)
      : device_(device), size_(bytes.size()), first_(kDeviceGuard + shift) {
    std::vector<std::byte> whole(first_ + size_ + kDeviceGuard, kMark);
    std::copy(bytes.begin(), bytes.end(), whole.begin() + static_cast<std::ptrdiff_t>(first_));
    base_ = device.allocate(whole.size());
    device.upload(base_, whole);
  }
  template <class T = std::byte>
  [[nodiscard]] T* address() const {
    return reinterpret_cast<T*>(base_ + first_);
  }
  /// What lies there now. Expects the guards untouched.
  [[nodiscard]] std::vector<std::byte> read() const {
    std::vector<std::byte> whole(first_ + size_ + kDeviceGuard);
    device_.download(whole, base_);
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(first_);
    const auto last = first + static_cast<std::ptrdiff_t>(size_);
    const auto marked = [](std::byte byte) { return byte == kMark; };
    EXPECT_TRUE(std::all_of(whole.begin(), first, marked) && std::all_of(last, whole.end(), marked))
        << "a kernel wrote outside its array";
    return {first, last};
  }

 private:
  static constexpr std::byte kMark{0xa5};
  Device& device_;
  std::size_t size_;
  std::size_t first_;
  std::byte* base_ = nullptr;
};

/// The arrays of a tile before or after an update.
struct TileBytes {
  StateLayout layout;
  std::vector<std::byte> state, parameters;
};

inline TileBytes pack(const Problem& problem, StateFormat format, DType parameter) {
  const std::size_t count = problem.master.size();
  TileBytes tile{.layout = make_layout(format, count), .state = {}, .parameters = {}};
  tile.state.resize(tile.layout.bytes);
  tile.parameters.resize(count * size_of(parameter));
  pack_state(tile.layout, {.master = problem.master, .m = problem.m, .v = problem.v},
             tile.state.data(), tile.parameters.data());
  return tile;
}

inline Outcome unpack(const TileBytes& tile) {
  const std::size_t n = tile.layout.count;
  Outcome result{.master = std::vector<float>(n),
                 .m = std::vector<float>(n),
                 .v = std::vector<float>(n),
                 .parameters = tile.parameters};
  unpack_state(tile.layout, tile.state.data(), tile.parameters.data(),
               {.master = result.master, .m = result.m, .v = result.v});
  return result;
}

/// An update: of what, and where the arrays lie.
struct DeviceCase {
  cuda::RangeTypes types;
  std::vector<ParameterGroup> groups;
  std::uint64_t index = 3 * kQuantizationBlock;
  std::size_t gradient_shift = 0;   ///< in elements
  std::size_t parameter_shift = 0;  ///< in elements
  bool in_place = true;
};

inline std::string describe(const DeviceCase& c) {
  std::string text(name_of(c.types.format));
  text += " gradients " + std::string(name_of(c.types.gradient));
  text += " parameters " + std::string(name_of(c.types.parameter));
  const UpdateScalars& s = c.groups.front().scalars;
  text += " optimizer " + std::to_string(static_cast<int>(s.optimizer));
  return text + " decay " + std::to_string(static_cast<int>(s.mode));
}

inline TileBytes update_on_cpu(Isa isa, const DeviceCase& c, const Problem& problem) {
  TileBytes tile = pack(problem, c.types.format, c.types.parameter);
  UpdateRange range =
      tile_range(tile.layout, tile.state.data(), tile.state.data(), problem.gradient.data(),
                 tile.parameters.data(), tile.parameters.data());
  range.index = c.index;
  range.block = 7;
  update(find_kernel(isa, c.types.gradient, c.types.parameter, c.types.format), c.groups, range);
  return tile;
}

template <class Device>
TileBytes update_on_device(Device& device, const DeviceCase& c, const Problem& problem) {
  TileBytes tile = pack(problem, c.types.format, c.types.parameter);
  const DeviceArray<Device> gradient(device, problem.gradient,
                                     c.gradient_shift * size_of(c.types.gradient));
  const DeviceArray<Device> in(device, tile.state);
  const DeviceArray<Device> parameters(device, tile.parameters,
                                       c.parameter_shift * size_of(c.types.parameter));
  // Padding between the arrays is not the update's to write.
  const DeviceArray<Device> out(device, tile.state);
  const DeviceArray<Device>& target = c.in_place ? in : out;
  UpdateRange range = tile_range(tile.layout, in.address(), target.address(), gradient.address(),
                                 parameters.address(), parameters.address());
  range.index = c.index;
  range.block = 7;
  device.update(c.types, c.groups, range);
  if (!c.in_place) {
    EXPECT_EQ(in.read(), tile.state) << "an update wrote to its input";
  }
  EXPECT_EQ(gradient.read(), problem.gradient) << "an update wrote to the gradient";
  tile.state = target.read();
  tile.parameters = parameters.read();
  return tile;
}

/// The first byte that differs, as a test's message.
inline ::testing::AssertionResult same_bytes(std::span<const std::byte> a,
                                             std::span<const std::byte> b) {
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (x == a.end() && y == b.end()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "byte " << x - a.begin() << " of " << a.size();
}

template <class Device>
void expect_bits_of_cpu(Device& device, const DeviceCase& c, const Problem& problem) {
  const TileBytes got = update_on_device(device, c, problem);
  for (const Isa isa : {Isa::scalar, best_isa()}) {
    const TileBytes want = update_on_cpu(isa, c, problem);
    ASSERT_TRUE(same_bytes(got.state, want.state)) << "state: " << describe(c);
    ASSERT_TRUE(same_bytes(got.parameters, want.parameters)) << "parameters: " << describe(c);
  }
}

inline std::vector<cuda::RangeTypes> all_range_types() {
  std::vector<cuda::RangeTypes> found;
  for (const Kernel& kernel : kernels()) {
    if (kernel.isa != Isa::scalar) continue;
    found.push_back({.format = kernel.format,
                     .gradient = kernel.gradient_dtype,
                     .parameter = kernel.parameter_dtype});
  }
  return found;
}

inline std::vector<AdamOptions> all_optimizers() {
  std::vector<AdamOptions> found;
  for (const Optimizer optimizer :
       {Optimizer::adam, Optimizer::adagrad, Optimizer::lion, Optimizer::sgd}) {
    for (const DecayMode mode : {DecayMode::decoupled, DecayMode::l2}) {
      found.push_back({.lr = 0.01,
                       .weight_decay = 0.1,
                       .decay_mode = mode,
                       .optimizer = optimizer,
                       .rounding_seed = 9});
    }
  }
  return found;
}

/// One group for all that follows.
inline std::vector<ParameterGroup> one_group(const AdamOptions& options) {
  return {
      {.end = std::numeric_limits<std::uint64_t>::max(), .scalars = make_scalars(options, 4, 0.5)}};
}

inline const float kSpecialValues[] = {0.0F,
                                       -0.0F,
                                       1e-40F,
                                       -1e-40F,
                                       std::numeric_limits<float>::min(),
                                       1.0F,
                                       -3.5F,
                                       0x1p-24F,
                                       65520.0F,
                                       1e30F,
                                       std::numeric_limits<float>::max(),
                                       std::numeric_limits<float>::infinity(),
                                       -std::numeric_limits<float>::infinity(),
                                       std::numeric_limits<float>::quiet_NaN()};

/// A problem of the first `values` special values in every mixture.
inline Problem special_problem(Random& random, DType gradient_dtype, std::size_t count,
                               std::size_t values) {
  Problem problem = random_problem(random, gradient_dtype, count);
  std::uniform_int_distribution<std::size_t> pick(0, values - 1);
  std::vector<float> gradient(count);
  for (std::size_t i = 0; i < count; ++i) {
    gradient[i] = kSpecialValues[pick(random)];
    problem.master[i] = kSpecialValues[pick(random)];
    problem.m[i] = kSpecialValues[pick(random)];
    problem.v[i] = kSpecialValues[pick(random)];
  }
  problem.gradient = to_gradients(gradient, gradient_dtype);
  return problem;
}

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
