// What `train` tells: its plan, what happens, and its report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/prepare/planned.hpp"
#include "runtime/engine/ranks/shown_share.hpp"
#include "runtime/engine/step/step_result.hpp"

namespace spillway::engine {

/// What is known before the first step.
struct TrainPlan {
  const Planned& plan;
  const plan::StepPlan& step;
  std::uint64_t steps = 0;
  std::uint64_t first_step = 1;
  /// Algorithms of matrix products that the run took from the machine profile.
  std::size_t measured_products = 0;
  std::vector<ShownShare> shares{};  ///< by rank; none for one rank, which has the whole machine
  std::string device_name{};         ///< "host", or the GPU as its driver names it
  double flops_per_token = 0;        ///< of forward and backward, nothing recomputed
};

/// Receives everything that happens, on the control thread, between steps.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void planned(const TrainPlan& plan) = 0;
  virtual void stepped(const StepResult& result, const StepUse& use) = 0;
  virtual void evaluated(std::uint64_t step, const Evaluation& evaluation) = 0;
  virtual void saved(std::uint64_t step, const std::filesystem::path& checkpoint) = 0;
  /// Passes on something that the user should know and that stops nothing.
  virtual void noted(const std::string& text) = 0;
};

/// The run in numbers.
struct TrainReport {
  std::uint64_t steps = 0;  ///< done by this process
  std::uint64_t last_step = 0;
  std::optional<double> last_loss;  ///< absent where no step was left to do
  std::optional<double> val_loss;   ///< after the last step, with all updates applied
  double predicted_step_seconds = 0;
  double measured_step_seconds = 0;  ///< median
  double tokens_per_second = 0;
  std::uint64_t skipped = 0;
  Bytes device_high_water, device_capacity, host_high_water;
  Bytes state_read, state_written;
  bool interrupted = false;
};

}  // namespace spillway::engine
