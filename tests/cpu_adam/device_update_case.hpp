// What the tests of the device's update share: arrays on a device between guards, and one update on
// it and on the CPU. A Device has
//
//   std::string unavailable();                              // why it cannot be used, or empty
//   std::byte* allocate(std::size_t size);                  // lives as long as the device
//   void upload(std::byte* target, std::span<const std::byte> source);
//   void download(std::span<std::byte> target, const std::byte* source);
//
// and the functions of device_update.hpp, without the stream.
#pragma once

#include <limits>

#include "cpu_adam/cuda/device_update.hpp"
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

}  // namespace spillway::cpu_adam::test
