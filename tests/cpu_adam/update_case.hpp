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

namespace spillway::cpu_adam::test {

using Random = std::mt19937_64;

/// Prints the seed; SPILLWAY_TEST_SEED repeats a run.
inline Random seeded_random() {
  const char* const given = std::getenv("SPILLWAY_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("SPILLWAY_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return Random(seed);
}

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
  std::vector<std::size_t> cuts = {};  ///< starts of further calls, ascending
};

/// Updates the first `count` elements of `problem`.
inline Outcome run(const Kernel& kernel, const UpdateScalars& scalars, const Problem& problem,
                   std::size_t count, const Layout& layout = {}) {
  const std::size_t floats = count * sizeof(float);
  const std::size_t gradient_size = size_of(kernel.gradient_dtype);
  const std::size_t parameter_size = size_of(kernel.parameter_dtype);
  const auto& shift = layout.misalignments;
  GuardedBytes gradient(count * gradient_size, shift[0]);
  GuardedBytes master(floats, shift[1]), m(floats, shift[2]), v(floats, shift[3]);
  GuardedBytes master_out(floats, shift[2]), m_out(floats, shift[3]), v_out(floats, shift[1]);
  GuardedBytes parameters(count * parameter_size, shift[4]);
  if (count > 0) {
    std::memcpy(gradient.as<std::byte>(), problem.gradient.data(), count * gradient_size);
    std::memcpy(master.as<std::byte>(), problem.master.data(), floats);
    std::memcpy(m.as<std::byte>(), problem.m.data(), floats);
    std::memcpy(v.as<std::byte>(), problem.v.data(), floats);
  }
  const bool in_place = layout.in_place;
  GuardedBytes& master_to = in_place ? master : master_out;
  GuardedBytes& m_to = in_place ? m : m_out;
  GuardedBytes& v_to = in_place ? v : v_out;
  std::size_t first = 0;
  for (std::size_t cut = 0; cut <= layout.cuts.size(); ++cut) {
    const std::size_t last = cut < layout.cuts.size() ? layout.cuts[cut] : count;
    kernel.update(scalars, {.gradient = gradient.as<std::byte>() + first * gradient_size,
                            .master_in = master.as<float>() + first,
                            .m_in = m.as<float>() + first,
                            .v_in = v.as<float>() + first,
                            .master_out = master_to.as<float>() + first,
                            .m_out = m_to.as<float>() + first,
                            .v_out = v_to.as<float>() + first,
                            .parameters_out = layout.parameters ? parameters.as<std::byte>() +
                                                                      first * parameter_size
                                                                : nullptr,
                            .count = last - first,
                            .prefetch_distance = layout.prefetch_distance});
    first = last;
  }
  for (const GuardedBytes* array :
       {&gradient, &master, &m, &v, &master_out, &m_out, &v_out, &parameters}) {
    EXPECT_TRUE(array->guards_intact()) << kernel.name << " wrote outside its range";
  }
  Outcome outcome{.master = std::vector<float>(count),
                  .m = std::vector<float>(count),
                  .v = std::vector<float>(count),
                  .parameters = std::vector<std::byte>(count * parameter_size)};
  if (count > 0) {
    std::memcpy(outcome.master.data(), master_to.as<std::byte>(), floats);
    std::memcpy(outcome.m.data(), m_to.as<std::byte>(), floats);
    std::memcpy(outcome.v.data(), v_to.as<std::byte>(), floats);
    std::memcpy(outcome.parameters.data(), parameters.as<std::byte>(), outcome.parameters.size());
  }
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

/// Kernels that this CPU can run.
inline std::vector<Kernel> runnable_kernels() {
  std::vector<Kernel> found;
  for (const Kernel& kernel : kernels()) {
    if (supported(kernel.isa)) found.push_back(kernel);
  }
  return found;
}

inline std::vector<Isa> runnable_isas() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (supported(isa)) found.push_back(isa);
  }
  return found;
}

inline std::string kernel_name(const ::testing::TestParamInfo<Kernel>& info) {
  return std::string(info.param.name);
}

}  // namespace spillway::cpu_adam::test
