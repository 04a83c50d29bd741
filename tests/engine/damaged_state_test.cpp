// State that is damaged on disk while a run trains is found when it is read, and never trained on.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/engine/training_harness.hpp"

namespace spillway::engine::damaged_state_test {
namespace {

/// Another byte in every page of the latter half of each swap file, which holds tiles only.
void damage(const std::filesystem::path& run) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run)) {
    if (entry.path().extension() != ".swap") continue;
    ++files;
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    const std::uintmax_t size = entry.file_size();
    for (std::uintmax_t at = size / 2 / kPageBytes * kPageBytes; at < size; at += kPageBytes) {
      file.seekg(static_cast<std::streamoff>(at + 5));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(at + 5));
      file.put(static_cast<char>(byte ^ 0x10));
    }
    ASSERT_TRUE(file.good()) << entry.path();
  }
  ASSERT_GT(files, 0U);
}

class DamagedState : public testing::TestWithParam<StateFormat> {};

TEST_P(DamagedState, EndsTheStepThatReadsIt) {
  TrainingHarness harness(tiny_llama());
  config::TrainOptions options = tiny_options();
  options.compute = DType::bf16;
  options.state_format = GetParam();
  options.state_home = config::StateHome::nvme;
  harness.adjust_placement = [](const plan::Workload&, plan::Placement& placement) {
    placement.state_slots = 2;  // fewer than the tiles, so that each step reads
  };
  const std::filesystem::path run = harness.new_run();
  const auto trainer = harness.make(options, run);
  Outcome outcome;
  harness.steps(*trainer, options, 2, outcome);
  damage(run);
  try {
    harness.steps(*trainer, options, 2, outcome);
    ADD_FAILURE() << "damaged state was trained on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DamagedState,
                         testing::Values(StateFormat::fp32, StateFormat::split),
                         [](const auto& format) { return std::string(name_of(format.param)); });

}  // namespace
}  // namespace spillway::engine::damaged_state_test
