// The live line of `spillway train`: progress, loss, speed, time left, memory and lanes, on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/engine/train_loop.hpp"

namespace spillway::cli {

/// On a terminal the line is rewritten in place; elsewhere a line is printed every few seconds.
class LiveLine {
 public:
  LiveLine();
  ~LiveLine();

  void start(std::uint64_t first_step, std::uint64_t steps);
  void step(const engine::StepResult& result, const engine::Exposed& exposed,
            const engine::Trainer& trainer);
  /// A line of its own that stays.
  void note(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  void show(const std::string& text);

  bool terminal_;
  bool open_ = false;  // the cursor stands behind a live line
  std::uint64_t first_step_ = 1;
  std::uint64_t steps_ = 0;
  Clock::time_point begin_{};
  Clock::time_point last_shown_{};
};

}  // namespace spillway::cli
