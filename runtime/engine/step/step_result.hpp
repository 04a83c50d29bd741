// What a step and an evaluation tell whoever watches a run: numbers, which any thread may hold.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "offload/device_backend.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::engine {

/// What became of updates that a step made ahead of the decision about them.
enum class UpdatesAhead : std::uint8_t {
  none,    ///< the plan has none
  paused,  ///< of the steps just before, one was clipped or skipped
  kept,
  undone,  ///< the step was clipped or skipped
};

/// What one step did. `loss` is the mean over the step's targets before the update.
struct StepResult {
  std::uint64_t step = 0;  ///< from 1
  double loss = 0;
  double grad_norm = 0;      ///< unscaled, before clipping
  double lr = 0;             ///< of this step's update; it is applied unless `skipped`
  double scale = 1;          ///< loss scale of this step
  std::uint64_t tokens = 0;  ///< targets
  double seconds = 0;
  /// A gradient was not finite: state is unchanged. Of stages that decide early (see
  /// update_decision.hpp), those whose own gradient was finite have made their update.
  bool skipped = false;
  UpdatesAhead ahead = UpdatesAhead::none;
  /// Why training cannot go on after this step; empty if it can.
  std::string diverged{};
};

struct Evaluation {
  double loss = 0;  ///< mean over targets
  std::uint64_t tokens = 0;
};

/// Seconds of a step during which a lane worked and the gpu lane did not, by lane, as the
/// simulator's `LaneUse::exposed`.
using Exposed = std::array<double, plan::kMachineLanes>;

/// What a step used of the machine.
struct StepUse {
  Exposed exposed{};
  double device_busy_seconds = 0;  ///< of the gpu lane, in the step's list
  offload::MemoryUsage device, pinned;
};

}  // namespace spillway::engine
