// Training on the GPU at shapes that the vendor's libraries serve (16-byte rows, heads of 64),
// which the tiny models of the other tests are too small for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/engine/device_under_test.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::gpu_training_test {
namespace {

constexpr int kSteps = 20;

model::ModelConfig small_llama() {
  const bool emulated = device_is_emulated();
  model::ModelConfig config = tiny_llama(emulated ? 2 : 4);
  config.vocab_size = emulated ? 120 : 1000;
  config.max_context = 128;
  config.heads = emulated ? 2 : 4;
  config.kv_heads = config.heads / 2;
  config.head_dim = 64;
  config.width = config.heads * config.head_dim;
  config.ffn_width = 2 * config.width;
  return config;
}

config::TrainOptions small_options(DType compute) {
  config::TrainOptions options = tiny_options();
  options.compute = compute;
  options.context = device_is_emulated() ? 16 : 128;
  options.state_format = compute == DType::bf16 ? StateFormat::split : StateFormat::fp32;
  options.state_home = config::StateHome::device;
  return options;
}

class GpuTraining : public testing::TestWithParam<DType> {};

TEST_P(GpuTraining, LossesFollowTheHostBackends) {
  TrainingHarness harness(small_llama());
  config::TrainOptions options = small_options(GetParam());
  // At 3e-3 the host's own losses move by 5 % where only the rounding differs, at 1e-3 by 0.04 %.
  options.schedule.peak_lr = 1e-3;
  const Outcome device = harness.train(options, kSteps);
  options.device = config::DeviceKind::host;
  const Outcome host = harness.train(options, kSteps);
  // Sums in another order: fp32 differs in the last bits of each product; bf16 rounds every
  // activation to 8 bits, 2^-9 of it either way. Both grow with the steps.
  const double bound = GetParam() == DType::fp32 ? 1e-4 : 2e-3;
  for (std::size_t step = 0; step < device.losses.size(); ++step) {
    EXPECT_NEAR(device.losses[step], host.losses[step], bound * host.losses[step]) << step;
  }
  EXPECT_LT(device.losses.back(), device.losses.front() - 0.5);
}

TEST_P(GpuTraining, SameBitsFromEveryTierAndTwice) {
  const int steps = device_is_emulated() ? 2 : kSteps;
  TrainingHarness harness(small_llama());
  config::TrainOptions options = small_options(GetParam());
  if (device_is_emulated()) options.gradient_accumulation_steps = 2;
  const Outcome device = harness.train(options, steps);
  EXPECT_EQ(harness.train(options, steps), device) << "the same run again";
  for (const config::StateHome home : {config::StateHome::host, config::StateHome::nvme}) {
    options.state_home = home;
    for (const std::uint32_t prefetch : {0U, 1U, 4U}) {
      options.prefetch = prefetch;
      for (const config::Residency residency : {config::Residency::none, config::Residency::all}) {
        options.residency = residency;
        options.checkpointing = residency == config::Residency::none
                                    ? config::Checkpointing::recompute
                                    : config::Checkpointing::automatic;
        EXPECT_EQ(harness.train(options, steps), device)
            << "prefetch " << prefetch << ", residency " << static_cast<int>(residency);
      }
    }
  }
  options.work_order = config::WorkOrder::micro_batch_major;
  EXPECT_EQ(harness.train(options, steps), device) << "micro-batch-major";
  harness.adjust_placement = [](const plan::Workload&, plan::Placement& placement) {
    for (plan::BlockCut& block : placement.blocks) block.saved = plan::Tier::host;
    placement.saved_slots = 2;
  };
  for (const config::WorkOrder order :
       {config::WorkOrder::layer_major, config::WorkOrder::micro_batch_major}) {
    options.work_order = order;
    EXPECT_EQ(harness.train(options, steps), device) << "saved activations on the host";
  }
}

INSTANTIATE_TEST_SUITE_P(Compute, GpuTraining, testing::Values(DType::fp32, DType::bf16),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace spillway::engine::gpu_training_test
