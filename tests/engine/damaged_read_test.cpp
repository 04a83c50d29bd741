// State that the disk gives back otherwise than it was written: the run ends there, nothing of it
// reaches the disk, and a resumed run goes on from the last commit with the bits of a whole one.
#include <gtest/gtest.h>

#include "tests/engine/damaging_engine.hpp"

namespace spillway::engine::damaged_read_test {
namespace {

struct Damage {
  bool armed = false;
  int reads_before = 0;  ///< that come back as they are
  int reads = 0;
};

class DamagedRead : public ::testing::TestWithParam<StateFormat> {};

TEST_P(DamagedRead, EndsTheRunAndLeavesTheCommitToGoOnFrom) {
  TrainingHarness harness(tiny_llama());
  config::TrainOptions options = tiny_options();
  options.compute = DType::bf16;
  options.state_format = GetParam();
  options.state_home = config::StateHome::nvme;
  const Outcome whole = harness.train(options, 5);
  for (const int reads_before : {0, 4}) {
    const std::filesystem::path run = harness.new_run();
    Damage damage{.reads_before = reads_before};
    damage_reads(harness, [&damage](std::byte* target) {
      if (damage.armed && damage.reads++ == damage.reads_before) target[5000] ^= std::byte{16};
    });
    Outcome outcome;
    {
      const auto trainer = harness.make(options, run);
      harness.steps(*trainer, options, 3, outcome);
      trainer->cycle().commit();
      damage.armed = true;
      Outcome lost;
      try {
        harness.steps(*trainer, options, 2, lost);
        FAIL() << "nothing was noticed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
        EXPECT_NE(std::string(error.what()).find(".swap"), std::string::npos) << error.what();
      }
    }
    damage.armed = false;
    const auto trainer = harness.make(options, run, true);
    harness.steps(*trainer, options, 2, outcome);
    harness.finish(*trainer, outcome);
    EXPECT_EQ(outcome, whole) << reads_before;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DamagedRead,
                         ::testing::Values(StateFormat::fp32, StateFormat::split),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace spillway::engine::damaged_read_test
