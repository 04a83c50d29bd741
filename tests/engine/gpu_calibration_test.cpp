// Calibration on a GPU, whose clocks rise with the work it has.
#include <chrono>
#include <vector>

#include "tests/engine/calibration_fixture.hpp"

namespace spillway::engine::gpu_calibration_test {
namespace {

TEST_F(CalibrationOfTinyModel, WorksForHalfASecondBeforeItMeasures) {
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> calls;
  ops_->on_attention = [&] { calls.push_back(Clock::now()); };
  EXPECT_GT(calibrate_it().gpu_flops, 0);
  // One layer stands for all: it runs once to touch what it uses, and twice to be timed.
  ASSERT_GE(calls.size(), 3U);
  EXPECT_GE(calls[calls.size() - 3] - calls.front(), std::chrono::milliseconds(490));
}

}  // namespace
}  // namespace spillway::engine::gpu_calibration_test
