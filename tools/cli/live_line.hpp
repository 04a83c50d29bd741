// The live line of `spillway train`: progress, loss, speed, time left, memory and lanes, on stderr.
//
// Control thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/engine/report/running_median.hpp"
#include "runtime/engine/train_loop.hpp"
#include "tools/cli/speed_shares.hpp"
#include "tools/cli/status_line.hpp"

namespace spillway::cli {

/// On a terminal the line is rewritten in place, with the fields that its width allows; elsewhere a
/// line is printed every few seconds.
class LiveLine {
 public:
  void start(const engine::TrainPlan& plan);
  void step(const engine::StepResult& result, const engine::StepUse& use);
  /// Writes a line of its own that stays.
  void note(const std::string& text) { line_.note(text); }
  /// Ends the steps: what comes next begins on a line of its own.
  void finish() { line_.finish(); }

 private:
  using Clock = std::chrono::steady_clock;

  StatusLine line_;
  config::DeviceKind device_ = config::DeviceKind::host;
  std::uint64_t first_step_ = 1;
  std::uint64_t steps_ = 0;
  engine::RunningMedian seconds_;  // of a step
  std::optional<SpeedShares> shares_;
  Clock::time_point begin_{};
  Clock::time_point last_shown_{};
};

}  // namespace spillway::cli
