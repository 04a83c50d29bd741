// Makes a program's engine tests train on the GPU, or skip where there is none.
#include <gtest/gtest.h>

#include <cstdio>

#include "offload/cuda/cuda_backend.hpp"
#include "offload/cuda/cuda_device.hpp"
#include "tests/engine/device_under_test.hpp"

namespace spillway::engine {

bool device_is_emulated() { return offload::query_cuda_device().name == "Emulated CUDA device"; }

namespace {

class OnTheGpu final : public testing::Environment {
 public:
  void SetUp() override {
    device_under_test() = config::DeviceKind::cuda;
    const std::string reason = offload::cuda_unavailable_reason();
    if (reason.empty()) return;
    // GoogleTest 1.12 counts the tests of a skipped environment as passed; CTest goes by this line.
    std::printf("[  SKIPPED ] this machine has no usable GPU: %s\n", reason.c_str());
    GTEST_SKIP();
  }
};

[[maybe_unused]] const testing::Environment* const kEnvironment =
    testing::AddGlobalTestEnvironment(new OnTheGpu);

}  // namespace
}  // namespace spillway::engine
