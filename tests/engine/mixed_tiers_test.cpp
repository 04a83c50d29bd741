// Blocks whose state lives in different tiers share the staging slots: tiles of the disk are
// updated in them, and tiles of the device pass through them on their way to a commit.
#include <gtest/gtest.h>

#include <array>

#include "tests/engine/training_harness.hpp"

namespace spillway::engine::mixed_tiers_test {
namespace {

using plan::Tier;

constexpr int kSteps = 6;

struct Mix {
  std::uint32_t turn;   ///< which block begins with which tier
  std::uint32_t slots;  ///< staging slots: fewer than the tiles of the disk, or more
};

class MixedTiers : public testing::TestWithParam<Mix> {
 protected:
  MixedTiers() : harness_(tiny_llama(4)), options_(tiny_options()) {
    options_.compute = DType::bf16;
    options_.state_format = StateFormat::split;
  }

  Outcome device_only() {
    config::TrainOptions options = options_;
    options.state_home = config::StateHome::device;
    return harness_.train(options, kSteps);
  }

  void mix() {
    harness_.adjust_placement = [](const plan::Workload&, plan::Placement& placement) {
      constexpr std::array kTiers = {Tier::nvme, Tier::device, Tier::host};
      for (std::size_t block = 0; block < placement.blocks.size(); ++block) {
        plan::BlockCut& place = placement.blocks[block];
        place.state = kTiers[(block + GetParam().turn) % kTiers.size()];
        place.parameters =
            place.state == Tier::device || block % 2 == 0 ? Tier::device : Tier::host;
        place.gradients = place.state == Tier::device ? Tier::device : Tier::host;
      }
      placement.state_slots = GetParam().slots;
    };
  }

  TrainingHarness harness_;
  config::TrainOptions options_;
};

TEST_P(MixedTiers, CommitEveryStepWithTheBitsOfDeviceOnly) {
  const Outcome device = device_only();
  mix();
  EXPECT_EQ(harness_.train(options_, kSteps), device);
}

TEST_P(MixedTiers, ResumeFromTheLastCommit) {
  const Outcome device = device_only();
  mix();
  const std::filesystem::path run = harness_.new_run();
  Outcome outcome;
  {
    // Destroyed without a commit of its last step, as a killed process would be.
    const auto trainer = harness_.make(options_, run);
    harness_.steps(*trainer, options_, 4, outcome);
  }
  const auto trainer = harness_.make(options_, run, true);
  ASSERT_EQ(trainer->state().step, 3U);
  outcome.losses.resize(3);
  outcome.norms.resize(3);
  harness_.steps(*trainer, options_, 3, outcome);
  harness_.finish(*trainer, outcome);
  EXPECT_EQ(outcome, device);
}

INSTANTIATE_TEST_SUITE_P(Turns, MixedTiers,
                         testing::Values(Mix{0, 2}, Mix{1, 4}, Mix{2, 8}, Mix{0, 16}),
                         [](const auto& mix) {
                           return "turn_" + std::to_string(mix.param.turn) + "_slots_" +
                                  std::to_string(mix.param.slots);
                         });

}  // namespace
}  // namespace spillway::engine::mixed_tiers_test
