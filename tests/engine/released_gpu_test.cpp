// A GPU whose memory is given back and taken again, on the emulated CUDA: how much of it is free,
// who is waited for, and what happens where somebody else has taken it.
#include <gtest/gtest.h>

#include "runtime/base/error.hpp"
#include "tests/engine/device_framework.hpp"
#include "tests/engine/embedded_fixture.hpp"
#include "tests/engine/stream_orders.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"
#include "tests/support/cuda_emulation/include/cuda_runtime_api.h"

namespace spillway::engine::released_gpu_test {
namespace {

void expect(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorName(status); }

std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  expect(cudaMemGetInfo(&free, &total));
  return free;
}

class ReleasedGpu : public EmbeddedTrainerTest {
 protected:
  /// The first parameter and the frozen tensor stay on the GPU; others are of two units.
  [[nodiscard]] std::unique_ptr<EmbeddedTrainer> make_on_gpu(int gpu = 0) const {
    EmbeddedOptions options = options_for();
    options.device = config::DeviceKind::cuda;
    options.device_index = gpu;
    options.device_memory = 1_MiB;
    auto list = model_.parameters(starts_);
    for (std::uint32_t i = 1; i < list.size(); ++i) list[i].unit = (i - 1) / 2;
    const std::vector<FrozenTensor> frozen{{.name = "frozen",
                                            .bytes = Bytes{frozen_.size() * sizeof(float)},
                                            .values = bytes_of(frozen_).data()}};
    return std::make_unique<EmbeddedTrainer>(options, list, frozen);
  }

  static std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
    return {bytes.begin(), bytes.end()};
  }

  std::vector<std::vector<std::byte>> starts_ = model_.starts(DType::fp32);
  Tensor frozen_ = normal(3, 30);
};

TEST_F(ReleasedGpu, HasAllMemoryFreeAndThenAsMuchInUseAsBefore) {
  const std::size_t before = free_memory();
  const auto trainer = make_on_gpu();
  const std::size_t with_it = free_memory();
  ASSERT_LT(with_it, before);
  ASSERT_TRUE(trainer->keeps_on_gpu(0));
  for (int round = 0; round < 2; ++round) {
    trainer->release_device();
    EXPECT_EQ(free_memory(), before);
    EXPECT_FALSE(trainer->keeps_on_gpu(0));
    EXPECT_EQ(copy_of(trainer->values(0)), starts_[0]);
    EXPECT_EQ(copy_of(trainer->frozen_values(0)), copy_of(bytes_of(frozen_)));
    trainer->resume_device();
    EXPECT_EQ(free_memory(), with_it);
    EXPECT_TRUE(trainer->keeps_on_gpu(0));
  }
}

TEST_F(ReleasedGpu, WritersOfParametersAreWaitedFor) {
  for_each_stream_order([&](std::uint64_t order) {
    const auto trainer = make_on_gpu();
    DeviceFramework framework(model_.sizes);
    const Tensor written = normal(3, 50), fixed = normal(3, 51);
    framework.write(0, trainer->values(0), bytes_of(written));
    framework.write(1, trainer->frozen_values(0), bytes_of(fixed));
    trainer->release_device(framework.work());
    EXPECT_EQ(copy_of(trainer->values(0)), copy_of(bytes_of(written))) << "order " << order;
    EXPECT_EQ(copy_of(trainer->frozen_values(0)), copy_of(bytes_of(fixed))) << "order " << order;
    trainer->resume_device();
    framework.read(0, trainer->values(0));
    EXPECT_EQ(framework.was_read(0, 12), copy_of(bytes_of(written))) << "order " << order;
    framework.read(1, trainer->frozen_values(0));
    EXPECT_EQ(framework.was_read(1, 12), copy_of(bytes_of(fixed))) << "order " << order;
  });
}

TEST_F(ReleasedGpu, IsTakenAgainOnceSomebodyElseHasLeft) {
  const auto trainer = make_on_gpu();
  trainer->release_device();
  void* others = nullptr;
  const std::size_t left = 20 << 10;  // room for what comes first
  expect(cudaMalloc(&others, free_memory() - left));
  try {
    trainer->resume_device();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
  EXPECT_TRUE(trainer->is_released());
  EXPECT_EQ(free_memory(), left);
  EXPECT_EQ(copy_of(trainer->values(0)), starts_[0]);
  expect(cudaFree(others));
  trainer->resume_device();
  DeviceFramework framework(model_.sizes);
  framework.read(0, trainer->values(0));
  EXPECT_EQ(framework.was_read(0, starts_[0].size()), starts_[0]);
}

TEST_F(ReleasedGpu, IsTheSameOneWhileAnotherIsCurrent) {
  cuda_emulation::set_devices(2);
  {
    const auto trainer = make_on_gpu(1);
    expect(cudaSetDevice(0));
    trainer->release_device();
    trainer->resume_device();
    cudaPointerAttributes found{};
    expect(cudaPointerGetAttributes(&found, trainer->values(0).data()));
    EXPECT_EQ(found.device, 1);
    int current = -1;
    expect(cudaGetDevice(&current));
    EXPECT_EQ(current, 0);
  }
  cuda_emulation::set_devices(1);
}

}  // namespace
}  // namespace spillway::engine::released_gpu_test
