// What the update's tests share: random problems, guarded and misaligned arrays, comparison of
// bits.
#pragma once

#include <fenv.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "runtime/base/error.hpp"
#include "tests/support/environment.hpp"

namespace spillway::cpu_adam::test {

using Random = std::mt19937_64;

/// Prints the seed; SPILLWAY_TEST_SEED repeats a run.
inline Random seeded_random() { return Random(test_support::test_seed()); }

/// `size` bytes at `misalignment` from a cache line, between guard bytes.
class GuardedBytes {
 public:
  GuardedBytes(std::size_t size, std::size_t misalignment)
      : size_(size), storage_(size + misalignment + 4 * kGuard, kMark) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    offset_ = (kGuard - address % kGuard) % kGuard + kGuard + misalignment;
  }

  template <class T>
  [[nodiscard]] T* as() {
    return reinterpret_cast<T*>(storage_.data() + offset_);
  }
  [[nodiscard]] bool guards_intact() const {
    const auto marked = [](std::byte byte) { return byte == kMark; };
    const auto first = storage_.begin() + static_cast<std::ptrdiff_t>(offset_);
    return std::all_of(storage_.begin(), first, marked) &&
           std::all_of(first + static_cast<std::ptrdiff_t>(size_), storage_.end(), marked);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xa5};
  std::size_t size_;
  std::vector<std::byte> storage_;
  std::size_t offset_ = 0;
};

/// Bytes of `values` as gradients of `dtype`.
inline std::vector<std::byte> to_gradients(std::span<const float> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  round_gradient(Isa::scalar, dtype, values.data(), bytes.data(), values.size());
  return bytes;
}

inline float gradient_at(std::span<const std::byte> bytes, DType dtype, std::size_t i) {
  float wide = 0;
  std::uint16_t half = 0;
  if (dtype == DType::fp32) {
    std::memcpy(&wide, bytes.data() + 4 * i, 4);
    return wide;
  }
  std::memcpy(&half, bytes.data() + 2 * i, 2);
  return dtype == DType::bf16 ? from_bf16(half) : from_fp16(half);
}

/// The state before, and the gradient of, one update.
struct Problem {
  DType gradient_dtype;
  std::vector<float> master, m, v;
  std::vector<std::byte> gradient;
};

/// Signed, over `octaves` powers of two below `largest`.
inline float random_float(Random& random, double largest, double octaves) {
  std::uniform_real_distribution<double> unit(0, 1);
  const double magnitude = largest * std::exp2(-octaves * unit(random));
  return static_cast<float>(unit(random) < 0.5 ? -magnitude : magnitude);
}

inline Problem random_problem(Random& random, DType gradient_dtype, std::size_t count) {
  Problem problem{.gradient_dtype = gradient_dtype, .master = {}, .m = {}, .v = {}, .gradient = {}};
  std::vector<float> gradient(count);
  for (std::size_t i = 0; i < count; ++i) {
    gradient[i] = random_float(random, 4, 24);
    problem.master.push_back(random_float(random, 8, 16));
    problem.m.push_back(random_float(random, 2, 24));
    problem.v.push_back(std::abs(random_float(random, 4, 40)));
  }
  problem.gradient = to_gradients(gradient, gradient_dtype);
  return problem;
}

/// The state after an update, in fp32: exactly what the format stands for.
struct Outcome {
  std::vector<float> master, m, v;
  std::vector<std::byte> parameters;
};

/// Where the arrays of a run lie and how it is cut.
struct Layout {
  std::size_t misalignments[5] = {};  ///< bytes: gradient, master, m, v, parameters
  bool in_place = true;
  bool parameters = true;
  std::size_t prefetch_distance = 0;
  /// Starts of further calls, ascending; format int8 rounds them down to quantization blocks.
  std::vector<std::size_t> cuts = {};
};

/// One slot of a run: the arrays of a state, each on its own and guarded.
struct GuardedSlot {
  GuardedSlot(const Kernel& kernel, std::size_t count, const std::size_t* shift)
      : layout(make_layout(kernel.format, count)),
        master(count * master_size(kernel.format), shift[1]),
        m(count * moment_size(kernel.format), shift[2]),
        v(count * moment_size(kernel.format), shift[3]),
        scales((layout.bytes - layout.scales) / 8 * 8, 0),
        parameters(count * size_of(kernel.parameter_dtype), shift[4]) {}

  /// Copies between the guarded arrays and a packed state.
  void copy(std::byte* state, bool load) {
    const auto move = [&](GuardedBytes& array, std::size_t at, std::size_t bytes) {
      if (bytes == 0) return;
      std::memcpy(load ? array.as<std::byte>() : state + at,
                  load ? state + at : array.as<std::byte>(), bytes);
    };
    move(master, layout.master, layout.count * master_size(layout.format));
    move(m, layout.m, layout.count * moment_size(layout.format));
    move(v, layout.v, layout.count * moment_size(layout.format));
    if (layout.format == StateFormat::int8) move(scales, layout.scales, scale_bytes());
  }
  [[nodiscard]] std::size_t scale_bytes() const { return (layout.count + 255) / 256 * 8; }
  [[nodiscard]] bool guards_intact() const {
    return master.guards_intact() && m.guards_intact() && v.guards_intact() &&
           scales.guards_intact() && parameters.guards_intact();
  }

  StateLayout layout;
  GuardedBytes master, m, v, scales, parameters;
};

/// Updates the first `count` elements of `problem`.
inline Outcome run(const Kernel& kernel, const UpdateScalars& scalars, const Problem& problem,
                   std::size_t count, const Layout& layout = {}) {
  const std::size_t gradient_size = size_of(kernel.gradient_dtype);
  GuardedBytes gradient(count * gradient_size, layout.misalignments[0]);
  const std::size_t shift_out[5] = {layout.misalignments[0], layout.misalignments[2],
                                    layout.misalignments[3], layout.misalignments[1],
                                    layout.misalignments[4]};
  GuardedSlot in(kernel, count, layout.misalignments), out(kernel, count, shift_out);
  std::vector<std::byte> state(in.layout.bytes);
  std::vector<std::byte> halves(2 * count);
  pack_state(in.layout,
             {.master = std::span(problem.master).first(count),
              .m = std::span(problem.m).first(count),
              .v = std::span(problem.v).first(count)},
             state.data(), halves.data());
  in.copy(state.data(), true);
  if (count > 0) {
    std::memcpy(gradient.as<std::byte>(), problem.gradient.data(), count * gradient_size);
    if (needs_parameters(kernel.format)) {
      std::memcpy(in.parameters.as<std::byte>(), halves.data(), halves.size());
    }
  }
  GuardedSlot& target = layout.in_place ? in : out;
  const UpdateRange whole{
      .gradient = gradient.as<std::byte>(),
      .master_in = in.master.as<std::byte>(),
      .m_in = in.m.as<std::byte>(),
      .v_in = in.v.as<std::byte>(),
      .scales_in = in.scales.as<float>(),
      .parameters_in = in.parameters.as<std::byte>(),
      .master_out = target.master.as<std::byte>(),
      .m_out = target.m.as<std::byte>(),
      .v_out = target.v.as<std::byte>(),
      .scales_out = target.scales.as<float>(),
      .parameters_out = layout.parameters ? target.parameters.as<std::byte>() : nullptr,
      .count = count,
      .block = 3,
      .prefetch_distance = layout.prefetch_distance};
  std::size_t first = 0;
  for (std::size_t cut = 0; cut <= layout.cuts.size(); ++cut) {
    std::size_t last = cut < layout.cuts.size() ? layout.cuts[cut] : count;
    if (kernel.format == StateFormat::int8 && last < count) last -= last % kQuantizationBlock;
    kernel.update(scalars, slice(kernel, whole, first, last - first));
    first = last;
  }
  for (const GuardedSlot* slot : {&in, &out}) {
    EXPECT_TRUE(slot->guards_intact()) << kernel.name << " wrote outside its range";
  }
  EXPECT_TRUE(gradient.guards_intact()) << kernel.name << " wrote to the gradient";
  Outcome outcome{.master = std::vector<float>(count),
                  .m = std::vector<float>(count),
                  .v = std::vector<float>(count),
                  .parameters = std::vector<std::byte>(count * size_of(kernel.parameter_dtype))};
  target.copy(state.data(), false);
  if (count > 0) {
    std::memcpy(outcome.parameters.data(), target.parameters.as<std::byte>(),
                outcome.parameters.size());
  }
  unpack_state(target.layout, state.data(), outcome.parameters.data(),
               {.master = outcome.master, .m = outcome.m, .v = outcome.v});
  return outcome;
}

/// Same bits, or NaN both (payloads are free).
inline bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

/// Compares the first `count` elements of two runs; `dtype` is that of the parameters.
inline ::testing::AssertionResult same_bits(const Outcome& a, const Outcome& b, std::size_t count,
                                            DType dtype, bool parameters = true) {
  const auto differ = [](const char* what, std::size_t i, float x, float y) {
    return ::testing::AssertionFailure()
           << what << "[" << i << "]: " << ::testing::PrintToString(x) << " and "
           << ::testing::PrintToString(y) << ", bits " << std::bit_cast<std::uint32_t>(x) << " and "
           << std::bit_cast<std::uint32_t>(y);
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (!same(a.master[i], b.master[i])) return differ("master", i, a.master[i], b.master[i]);
    if (!same(a.m[i], b.m[i])) return differ("m", i, a.m[i], b.m[i]);
    if (!same(a.v[i], b.v[i])) return differ("v", i, a.v[i], b.v[i]);
    if (!parameters) continue;
    const float x = gradient_at(a.parameters, dtype, i);
    const float y = gradient_at(b.parameters, dtype, i);
    if (!same(x, y)) return differ("parameters", i, x, y);
  }
  return ::testing::AssertionSuccess();
}

/// MXCSR of the calling thread.
inline unsigned floating_point_control() {
  fenv_t environment;
  fegetenv(&environment);
  return environment.__mxcsr;
}

/// The plain kernel that `kernel` must agree with.
inline const Kernel& plain_kernel(const Kernel& kernel) {
  return find_kernel(Isa::scalar, kernel.gradient_dtype, kernel.parameter_dtype, kernel.format);
}

/// Kernels that this CPU can run.
inline std::vector<Kernel> runnable_kernels() {
  std::vector<Kernel> found;
  for (const Kernel& kernel : kernels()) {
    if (supported(kernel.isa)) found.push_back(kernel);
  }
  return found;
}

/// Those whose state is exact.
inline std::vector<Kernel> exact_kernels() {
  std::vector<Kernel> found = runnable_kernels();
  std::erase_if(found, [](const Kernel& kernel) {
    return kernel.format == StateFormat::bf16 || kernel.format == StateFormat::int8;
  });
  return found;
}

inline std::vector<Isa> runnable_isas() {
  std::vector<Isa> found;
  for (const Isa isa : isas()) {
    if (supported(isa)) found.push_back(isa);
  }
  return found;
}

inline std::string kernel_name(const ::testing::TestParamInfo<Kernel>& info) {
  return std::string(info.param.name);
}

}  // namespace spillway::cpu_adam::test
