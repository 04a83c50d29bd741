// The update's kernels on a GPU: the contract that their bodies keep on the CPU.
#include <optional>

#include "offload/cuda/cuda_device.hpp"
#include "tests/cpu_adam/device_update_contract.hpp"
#include "tests/support/gpu_arena.hpp"

namespace spillway::cpu_adam::test::device_update_gpu_test {
namespace {

/// The GPU, its memory taken at the first use. No array of a test is freed before its end.
class GpuDevice {
 public:
  static std::string unavailable() { return offload::cuda_unavailable_reason(); }

  std::byte* allocate(std::size_t size) { return arena().allocate(size); }
  void upload(std::byte* target, std::span<const std::byte> source) {
    arena().upload(target, source);
  }
  void download(std::span<std::byte> target, const std::byte* source) {
    arena().download(target, source);
  }
  void update(const cuda::RangeTypes& types, std::span<const ParameterGroup> groups,
              const UpdateRange& range) {
    cuda::update(types, groups, range, arena().stream().native());
  }
  void accumulate(DType dtype, const void* source, float* target, std::size_t count, bool first) {
    cuda::accumulate(dtype, source, target, count, first, arena().stream().native());
  }
  void round_gradient(DType dtype, const float* source, void* target, std::size_t count) {
    cuda::round_gradient(dtype, source, target, count, arena().stream().native());
  }
  void sum_squares(DType dtype, const void* gradient, std::size_t count, double* leaves) {
    cuda::sum_squares(dtype, gradient, count, leaves, arena().stream().native());
  }
  offload::Stream& stream() { return arena().stream(); }

 private:
  test_support::GpuArena& arena() {
    if (!arena_) arena_.emplace(256_MiB);
    return *arena_;
  }
  std::optional<test_support::GpuArena> arena_;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, DeviceUpdate, GpuDevice);

class DeviceMemoryOps : public DeviceUpdate<GpuDevice> {};

TEST_F(DeviceMemoryOps, CopiesAndClearsAnyBytes) {
  std::vector<std::byte> bytes(1001);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const std::vector<std::byte> ones(bytes.size(), std::byte{1});
  const DeviceArray from(device_, std::span<const std::byte>(bytes), 1);
  const DeviceArray to(device_, std::span(ones), 3);
  cuda::copy(to.address(), from.address(), bytes.size(), device_.stream().native());
  EXPECT_TRUE(same_bytes(to.read(), bytes));
  cuda::fill_zero(to.address() + 1, 2, device_.stream().native());
  bytes[1] = bytes[2] = std::byte{0};
  EXPECT_TRUE(same_bytes(to.read(), bytes));
}

TEST_F(DeviceMemoryOps, GridsThatStrideReachEveryElement) {
  constexpr std::size_t kCount = std::size_t{20} << 20;
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 8191);
  const DeviceArray from(device_, std::as_bytes(std::span(values)), sizeof(float));
  const DeviceArray to(device_, std::as_bytes(std::span(values)));
  // Never aligned together: every element is a thread's, and there are more than 2^16 x 256.
  device_.accumulate(DType::fp32, from.address(), to.address<float>(), kCount, false);
  for (float& value : values) value *= 2;
  EXPECT_TRUE(same_bytes(to.read(), std::as_bytes(std::span(values))));
}

}  // namespace
}  // namespace spillway::cpu_adam::test::device_update_gpu_test
