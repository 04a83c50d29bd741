// The engine's arithmetic on a CUDA device: what it refuses, and on a GPU the bits of the host's.
#include "runtime/engine/device/device_math.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "offload/cuda/cuda_device.hpp"
#include "offload/host/host_backend.hpp"
#include "runtime/base/error.hpp"
#include "tests/support/gpu_arena.hpp"

namespace spillway::engine::device_math_test {
namespace {

using offload::DeviceSpan;

TEST(CudaDeviceMath, RefusesAStreamOfTheHost) {
  const auto backend =
      offload::make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB});
  const auto stream = backend->make_stream("compute");
  try {
    static_cast<void>(make_cuda_device_math(*stream));
    FAIL() << "took it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  }
}

/// The arrays of one block's gradient.
struct GradientArrays {
  std::vector<float> sums, tied;
  std::vector<std::byte> rounded, home;
};

constexpr std::size_t kParameters = 10'001;
constexpr std::size_t kPadded = 3 * kLeafParameters;
constexpr std::size_t kTied = 5'000;

GradientArrays random_arrays(DType dtype, bool sums_rounds) {
  GradientArrays arrays;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  arrays.sums.resize(kPadded);
  arrays.tied.resize(kTied);
  for (float& value : arrays.sums) value = normal(random);
  for (float& value : arrays.tied) value = normal(random);
  arrays.rounded.resize(kPadded * size_of(dtype), std::byte{1});
  arrays.home.resize(kPadded * (sums_rounds ? sizeof(float) : size_of(dtype)), std::byte{2});
  return arrays;
}

class CudaDeviceMathOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = offload::cuda_unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << "this machine has no usable GPU: " << reason;
  }
};

template <class T>
DeviceSpan<T> span_of(std::vector<T>& values) {
  return {values.data(), values.size()};
}

/// A vector's copy on the GPU.
template <class T>
class OnGpu {
 public:
  OnGpu(test_support::GpuArena& arena, std::vector<T>& host) : arena_(arena), host_(host) {
    address_ = arena.allocate(host.size() * sizeof(T));
    arena.upload(address_, std::as_bytes(std::span(host)));
  }
  [[nodiscard]] DeviceSpan<T> span() const {
    return {reinterpret_cast<T*>(address_), host_.size()};
  }
  void read_back() { arena_.download(std::as_writable_bytes(std::span(host_)), address_); }

 private:
  test_support::GpuArena& arena_;
  std::vector<T>& host_;
  std::byte* address_;
};

/// Rounds of `arrays` on the host and on the GPU, compared after each.
void expect_same_rounds(DType dtype, bool sums_rounds, bool tied, bool has_home) {
  GradientArrays host = random_arrays(dtype, sums_rounds);
  GradientArrays copy = host;
  test_support::GpuArena arena(16_MiB);
  OnGpu sums(arena, copy.sums), tied_sums(arena, copy.tied);
  OnGpu rounded(arena, copy.rounded), home(arena, copy.home);
  const auto host_math = make_host_device_math(cpu_adam::Isa::scalar);
  const auto gpu_math = make_cuda_device_math(arena.stream());
  for (const bool first : {true, false}) {
    FinishedGradient on_host;
    on_host.sums = span_of(host.sums);
    on_host.parameters = kParameters;
    on_host.rounded =
        dtype == DType::fp32 ? span_of(host.sums).as<std::byte>() : span_of(host.rounded);
    on_host.dtype = dtype;
    on_host.sums_rounds = sums_rounds;
    on_host.first_round = first;
    FinishedGradient on_gpu = on_host;
    on_gpu.sums = sums.span();
    on_gpu.rounded = dtype == DType::fp32 ? sums.span().as<std::byte>() : rounded.span();
    if (tied) on_host.tied = span_of(host.tied), on_gpu.tied = tied_sums.span();
    if (has_home) on_host.home = span_of(host.home), on_gpu.home = home.span();
    host_math->finish_gradient(on_host);
    gpu_math->finish_gradient(on_gpu);
    sums.read_back();
    rounded.read_back();
    home.read_back();
    EXPECT_EQ(copy.sums, host.sums);
    EXPECT_TRUE(copy.rounded == host.rounded);
    EXPECT_TRUE(copy.home == host.home);
  }
}

TEST_F(CudaDeviceMathOnGpu, RoundsAsTheHostDoes) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const bool sums_rounds : {false, true}) {
      for (const bool tied : {false, true}) {
        for (const bool has_home : {false, true}) {
          SCOPED_TRACE(std::string(name_of(dtype)) + (sums_rounds ? " rounds" : "") +
                       (tied ? " tied" : "") + (has_home ? " home" : ""));
          expect_same_rounds(dtype, sums_rounds, tied, has_home);
        }
      }
    }
  }
}

TEST_F(CudaDeviceMathOnGpu, SumsSquaresAsTheHostDoes) {
  GradientArrays host = random_arrays(DType::fp32, false);
  std::vector<double> want(kPadded / kLeafParameters), got(want.size());
  test_support::GpuArena arena(16_MiB);
  OnGpu sums(arena, host.sums);
  OnGpu leaves(arena, got);
  make_host_device_math(cpu_adam::Isa::scalar)
      ->sum_squares(span_of(host.sums).as<const std::byte>(), DType::fp32, span_of(want));
  make_cuda_device_math(arena.stream())
      ->sum_squares(sums.span().as<const std::byte>(), DType::fp32, leaves.span());
  leaves.read_back();
  EXPECT_EQ(got, want);
}

TEST_F(CudaDeviceMathOnGpu, Copies) {
  GradientArrays arrays = random_arrays(DType::bf16, /*sums_rounds=*/false);
  test_support::GpuArena arena(16_MiB);
  std::vector<float> copied(arrays.sums.size());
  const OnGpu source(arena, arrays.sums);
  OnGpu target(arena, copied);
  make_cuda_device_math(arena.stream())
      ->copy(target.span().as<std::byte>(), source.span().as<const std::byte>());
  arena.stream().synchronize();
  target.read_back();
  EXPECT_EQ(copied, arrays.sums);
}

TEST_F(CudaDeviceMathOnGpu, UpdatesAsTheHostDoes) {
  GradientArrays host = random_arrays(DType::fp32, false);
  const cpu_adam::StateLayout layout = cpu_adam::make_layout(StateFormat::split, kPadded);
  std::vector<std::byte> state(layout.bytes), parameters(2 * kPadded);
  cpu_adam::pack_state(layout, {.master = host.sums, .m = {}, .v = {}}, state.data(),
                       parameters.data());
  std::vector<std::byte> gpu_state = state, gpu_parameters = parameters;
  test_support::GpuArena arena(16_MiB);
  OnGpu gradient(arena, host.sums);
  OnGpu state_there(arena, gpu_state), parameters_there(arena, gpu_parameters);
  const UpdateTypes types{
      .format = StateFormat::split, .gradient = DType::fp32, .parameter = DType::bf16};
  const std::vector<cpu_adam::ParameterGroup> groups{
      {.end = kTied, .scalars = cpu_adam::make_scalars({.weight_decay = 0.1}, 1, 0.5)},
      {.end = kPadded, .scalars = cpu_adam::make_scalars({}, 1, 0.5)}};
  make_host_device_math(cpu_adam::best_isa())
      ->update(types, groups,
               cpu_adam::tile_range(layout, state.data(), state.data(), host.sums.data(),
                                    parameters.data(), parameters.data()));
  std::byte* const there = state_there.span().address();
  std::byte* const halves = parameters_there.span().address();
  make_cuda_device_math(arena.stream())
      ->update(
          types, groups,
          cpu_adam::tile_range(layout, there, there, gradient.span().address(), halves, halves));
  state_there.read_back();
  parameters_there.read_back();
  EXPECT_TRUE(gpu_state == state);
  EXPECT_TRUE(gpu_parameters == parameters);
}

}  // namespace
}  // namespace spillway::engine::device_math_test
