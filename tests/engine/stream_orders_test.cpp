// Training on the emulated CUDA in 200 orders of its streams: a wait that is missing anywhere shows
// as other bits in one of them.
#include <gtest/gtest.h>

#include "tests/engine/training_harness.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::engine::stream_orders_test {
namespace {

constexpr int kSteps = 2;
constexpr std::uint64_t kFirstSeed = 2;  // 0 and 1 are no seeds
constexpr std::uint64_t kSeeds = 200;
constexpr Bytes kHostMemory = 4_MiB;
constexpr Bytes kBuffer{kHostMemory.value() / 16};  // a pinned one, for what is not

using Change = std::function<void(config::TrainOptions&)>;

config::TrainOptions short_options() {
  config::TrainOptions options = tiny_options();
  options.micro_batch = 1;
  options.context = 8;
  options.compute = DType::bf16;
  options.state_format = StateFormat::split;
  return options;
}

void streamed(config::TrainOptions& options) {
  options.state_home = config::StateHome::host;
  options.residency = config::Residency::none;
  options.checkpointing = config::Checkpointing::recompute;
  options.gradient_sums = config::SumsHome::host;
}

/// Every way that data takes between the tiers; the mathematics is the same.
std::vector<Change> placements() {
  const auto streamed_and = [](const Change& more) {
    return [more](config::TrainOptions& options) {
      streamed(options);
      more(options);
    };
  };
  return {
      [](auto& o) { o.state_home = config::StateHome::device; },
      streamed,
      streamed_and([](auto& o) {
        o.prefetch = 3;
        o.state_home = config::StateHome::nvme;
      }),
      streamed_and([](auto& o) { o.activations = config::StateHome::host; }),
      streamed_and([](auto& o) {
        o.activations = config::StateHome::nvme;
        o.state_home = config::StateHome::nvme;
      }),
      streamed_and([](auto& o) { o.gradient_sums = config::SumsHome::device; }),
      streamed_and([](auto& o) { o.work_order = config::WorkOrder::micro_batch_major; }),
      [](auto& o) {
        o.state_home = config::StateHome::host;
        o.residency = config::Residency::all;
      },
  };
}

TEST(StreamOrders, TwoHundredOfThemHaveTheBitsOfTheLatest) {
  const std::vector<Change> changes = placements();
  TrainingHarness harness(tiny_gpt2(2));
  const auto train = [&](const Change& change, std::uint64_t order) {
    cuda_emulation::set_order(order);
    config::TrainOptions options = short_options();
    change(options);
    return harness.train(options, kSteps);
  };
  const Outcome latest = train(changes.front(), cuda_emulation::late);
  const std::uint64_t overtaken = cuda_emulation::statistics().overtaken;
  for (std::uint64_t i = 0; i < kSeeds; ++i) {
    const std::size_t placement = i % changes.size();
    ASSERT_EQ(train(changes[placement], kFirstSeed + i), latest)
        << "seed " << kFirstSeed + i << ", placement " << placement;
  }
  EXPECT_GT(cuda_emulation::statistics().overtaken, overtaken);
  cuda_emulation::set_order(cuda_emulation::late);
}

// Downloads and uploads of memory that is not pinned are in their streams' order too.
TEST(StreamOrders, HaveTheSameBitsWhereHostMemoryIsNotPinned) {
  const std::vector<Change> changes = placements();
  TrainingHarness harness(tiny_gpt2(2));
  config::TrainOptions options = short_options();
  const Outcome pinned = harness.train(options, kSteps);
  const std::uint64_t functions = cuda_emulation::statistics().host_functions;
  options.host_memory = kHostMemory;
  for (std::size_t placement = 0; placement < changes.size(); ++placement) {
    config::TrainOptions changed = options;
    changes[placement](changed);
    cuda_emulation::set_order(kFirstSeed + placement);
    cuda_emulation::limit_pinned(kBuffer.value() + kPageBytes);
    EXPECT_EQ(harness.train(changed, kSteps), pinned) << "placement " << placement;
    cuda_emulation::limit_pinned(~std::uint64_t{0});
  }
  EXPECT_GT(cuda_emulation::statistics().host_functions, functions);
  cuda_emulation::set_order(cuda_emulation::late);
}

}  // namespace
}  // namespace spillway::engine::stream_orders_test
