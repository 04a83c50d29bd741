// The C interface with tensors in the memory of a GPU, on the emulated CUDA.
#include <gmock/gmock.h>

#include "tests/capi/fixture.hpp"
#include "tests/engine/device_framework.hpp"
#include "tests/engine/stream_orders.hpp"

namespace spillway::capi_test::device_test {
namespace {

using engine::DeviceFramework;
using testing::HasSubstr;

constexpr int kSteps = 3;

std::vector<float> gradient_of(int step, std::size_t count) {
  std::vector<float> gradient(count);
  for (std::size_t i = 0; i < count; ++i) {
    gradient[i] = static_cast<float>(step) - 0.75F * static_cast<float>(i);
  }
  return gradient;
}

class CDevice : public Training {
 protected:
  void start_on_gpu(bool streamed) {
    add_all();
    spillway_options options = SPILLWAY_OPTIONS_INIT;
    options.device = SPILLWAY_CUDA;
    if (streamed) options.device_memory = 16 << 10;
    for (std::uint32_t i = 0; streamed && i < 2; ++i) {
      SPILLWAY_OK_(spillway_set_unit(trainer, i, i));
    }
    SPILLWAY_OK_(spillway_start(trainer, &options));
  }

  [[nodiscard]] spillway_tensor on_gpu(const std::byte* data, std::uint32_t parameter) const {
    spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
    tensor.device = SPILLWAY_CUDA;
    tensor.data = const_cast<std::byte*>(data);
    tensor.shape = shapes[parameter].data();
    tensor.dimensions = static_cast<std::int32_t>(shapes[parameter].size());
    return tensor;
  }

  void give_on_gpu(DeviceFramework& framework, std::uint32_t parameter, int step) {
    std::int32_t read = 0;
    while (read == 0) SPILLWAY_OK_(spillway_gradient_read(trainer, parameter, &read));
    const auto values = gradient_of(step, start[parameter].size());
    const auto made = framework.gradient(parameter, std::as_bytes(std::span(values)),
                                         offload::ExternalWork::Kind::stream);
    const spillway_tensor tensor = on_gpu(made.values.address(), parameter);
    SPILLWAY_OK_(spillway_gradient_ready(trainer, parameter, &tensor, SPILLWAY_READY_STREAM,
                                         made.ready.handle));
  }

  void step_on_gpu(const DeviceFramework& framework) {
    spillway_step_options options = SPILLWAY_STEP_OPTIONS_INIT;
    options.ready = SPILLWAY_READY_STREAM;
    options.handle = framework.work().handle;
    SPILLWAY_OK_(spillway_step(trainer, &options, nullptr));
  }

  /// Returns the values that a trainer on the host has after the same steps.
  std::vector<std::vector<float>> on_the_host() {
    spillway_trainer* const other = std::exchange(trainer, nullptr);
    EXPECT_EQ(spillway_create(&trainer), SPILLWAY_OK);
    start_all();
    for (int step = 1; step <= kSteps; ++step) {
      for (std::uint32_t i = 0; i < 2; ++i) {
        EXPECT_EQ(give(i, gradient_of(step, start[i].size())), SPILLWAY_OK);
      }
      EXPECT_EQ(spillway_step(trainer, nullptr, nullptr), SPILLWAY_OK);
    }
    std::vector<std::vector<float>> result;
    for (std::uint32_t i = 0; i < 2; ++i) {
      result.emplace_back(values(i).begin(), values(i).end());
    }
    EXPECT_EQ(spillway_destroy(trainer), SPILLWAY_OK);
    trainer = other;
    return result;
  }

  void again() {
    SPILLWAY_OK_(spillway_destroy(trainer));
    SPILLWAY_OK_(spillway_create(&trainer));
  }

  static std::vector<float> floats(const std::vector<std::byte>& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

TEST_F(CDevice, TrainsParametersInTheMemoryOfAGpu) {
  const auto expected = on_the_host();
  engine::for_each_stream_order([&](std::uint64_t order) {
    again();
    start_on_gpu(/*streamed=*/false);
    DeviceFramework framework({6, 5});
    for (int step = 1; step <= kSteps; ++step) {
      for (std::uint32_t i = 0; i < 2; ++i) give_on_gpu(framework, i, step);
      step_on_gpu(framework);
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      spillway_tensor there = SPILLWAY_TENSOR_INIT;
      SPILLWAY_OK_(spillway_values(trainer, i, &there));
      ASSERT_EQ(there.device, SPILLWAY_CUDA);
      const std::size_t bytes = start[i].size() * sizeof(float);
      framework.read(i, {static_cast<std::byte*>(there.data), bytes});
      EXPECT_EQ(floats(framework.was_read(i, bytes)), expected[i]) << "order " << order;
    }
    again();
  });
}

TEST_F(CDevice, StreamsUnitsThroughTheMemoryOfAGpu) {
  const auto expected = on_the_host();
  engine::for_each_stream_order([&](std::uint64_t order) {
    again();
    start_on_gpu(/*streamed=*/true);
    DeviceFramework framework({6, 5});
    for (int step = 1; step <= kSteps; ++step) {
      for (const std::uint32_t unit : {1U, 0U}) {
        SPILLWAY_OK_(spillway_enter(trainer, unit, SPILLWAY_BACKWARD));
        spillway_tensor there = SPILLWAY_TENSOR_INIT;
        SPILLWAY_OK_(spillway_device_values(trainer, unit, &there));
        ASSERT_EQ(there.device, SPILLWAY_CUDA);
        const std::size_t bytes = start[unit].size() * sizeof(float);
        framework.read(unit, {static_cast<std::byte*>(there.data), bytes});
        SPILLWAY_OK_(spillway_leave(trainer, unit, SPILLWAY_READY_STREAM, framework.work().handle));
      }
      for (std::uint32_t i = 0; i < 2; ++i) {
        EXPECT_EQ(floats(framework.was_read(i, start[i].size() * sizeof(float))),
                  std::vector<float>(values(i).begin(), values(i).end()));
        give_on_gpu(framework, i, step);
      }
      step_on_gpu(framework);
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      EXPECT_EQ(std::vector<float>(values(i).begin(), values(i).end()), expected[i])
          << "order " << order;
    }
    again();
  });
}

TEST_F(CDevice, ReleasesTheMemoryOfAGpuBehindAStream) {
  engine::for_each_stream_order([&](std::uint64_t order) {
    again();
    start_on_gpu(/*streamed=*/false);
    DeviceFramework framework({6, 5});
    const auto place = [&](std::int32_t device) {
      spillway_tensor found = SPILLWAY_TENSOR_INIT;
      EXPECT_EQ(spillway_values(trainer, 1, &found), SPILLWAY_OK);
      EXPECT_EQ(found.device, device);
      return std::span(static_cast<std::byte*>(found.data), 5 * sizeof(float));
    };
    const std::vector<float> written{9, 8, 7, 6, 5};
    framework.write(1, place(SPILLWAY_CUDA), std::as_bytes(std::span(written)));
    SPILLWAY_OK_(spillway_release_device(trainer, SPILLWAY_READY_STREAM, framework.work().handle));
    const auto kept = place(SPILLWAY_CPU);
    EXPECT_EQ(floats({kept.begin(), kept.end()}), written) << "order " << order;
    SPILLWAY_OK_(spillway_resume_device(trainer));
    framework.read(1, place(SPILLWAY_CUDA));
    EXPECT_EQ(floats(framework.was_read(1, 5 * sizeof(float))), written) << "order " << order;
    again();
  });
}

TEST_F(CDevice, RefusesMemoryOfTheHostAndOfAnotherGpu) {
  start_on_gpu(/*streamed=*/false);
  DeviceFramework framework({6, 5});
  std::vector<float> host(5, 1.0F);
  spillway_tensor tensor = on_gpu(std::as_bytes(std::span(host)).data(), 1);
  EXPECT_EQ(spillway_gradient_ready(trainer, 1, &tensor, SPILLWAY_READY_NOW, nullptr),
            SPILLWAY_INVALID_ARGUMENT);
  EXPECT_THAT(spillway_last_message(), HasSubstr("are not memory of GPU 0"));
  tensor.device_index = 1;
  EXPECT_EQ(spillway_gradient_ready(trainer, 1, &tensor, SPILLWAY_READY_NOW, nullptr),
            SPILLWAY_INVALID_ARGUMENT);
  EXPECT_THAT(spillway_last_message(), HasSubstr("lies on GPU 1 and the trainer's is GPU 0"));
  tensor.device = SPILLWAY_CPU;
  EXPECT_EQ(spillway_gradient_ready(trainer, 1, &tensor, SPILLWAY_READY_STREAM, nullptr),
            SPILLWAY_INVALID_ARGUMENT);
  EXPECT_THAT(spillway_last_message(), HasSubstr("is in host memory and is to wait"));
  for (std::uint32_t i = 0; i < 2; ++i) give_on_gpu(framework, i, 1);
  step_on_gpu(framework);
}

}  // namespace
}  // namespace spillway::capi_test::device_test
