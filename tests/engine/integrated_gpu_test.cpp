// A GPU whose memory is the host's, on the emulated CUDA: each byte counts once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "tests/engine/embedded_fixture.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::engine::integrated_gpu_test {
namespace {

class IntegratedGpu : public EmbeddedTrainerTest {
 protected:
  IntegratedGpu() { cuda_emulation::set_integrated(true); }
  ~IntegratedGpu() override { cuda_emulation::set_integrated(false); }
};

TEST_F(IntegratedGpu, SharesOneMemoryWithTheHost) {
  config::TrainOptions options;
  options.device = config::DeviceKind::cuda;
  const std::optional<Bytes> free = free_memory_of_device(options);
  EXPECT_FALSE(free.has_value());
  const MemoryBudget memory = read_memory_budget();
  const MemoryLimits limits = memory_limits(options, memory, free);
  EXPECT_LE(limits.both, room_in(memory));
  cuda_emulation::set_integrated(false);
  EXPECT_GT(free_memory_of_device(options), Bytes{});
}

TEST_F(IntegratedGpu, ATrainerCountsItsPartsOnTheGpuAsMemoryOfTheHost) {
  EmbeddedOptions options = options_for();
  options.device = config::DeviceKind::cuda;
  const auto trainer = make(options);
  Bytes device, host;
  for (const plan::MemoryItem& item : trainer->memory()) {
    (item.tier == plan::Tier::device ? device : host) += item.bytes;
  }
  ASSERT_GT(device, Bytes{});
  // Either part fits into this alone, and not both of them.
  options.host_memory = std::max(device, host) + 1_KiB;
  ASSERT_LT(*options.host_memory, device + host);
  try {
    (void)make(options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("host memory needs " + format_bytes(device + host)));
  }
}

}  // namespace
}  // namespace spillway::engine::integrated_gpu_test
