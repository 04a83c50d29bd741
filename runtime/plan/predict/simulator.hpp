// Predicts a StepPlan on a machine: one FIFO per lane, discrete events, no randomness.
//
// Rules. An op starts at the first instant at which its lane is free, all earlier ops of its lane
// have started and its dependencies are complete. It first takes the profile's fixed overhead,
// during which it disturbs nobody, then its work. Alone, the work takes bytes / rate of its lane;
// on the gpu lane the longer of flops / gpu_flops and bytes / gpu_update; on the cpu lane bytes /
// update. Two lanes that share a resource (nvme_read and nvme_write, h2d and d2h) slow each other
// while both work: each keeps the same fraction of its own rate, so that together they reach the
// measured combined rate. Lanes of a host backend that want more than all cores (CoreShares) slow
// each other likewise. Rates change at events only, so times are exact up to rounding and
// independent of any step size.
//
// Pure functions, any thread.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::plan {

struct OpTiming {
  double start = 0;  ///< seconds from the start of the step
  double end = 0;
};

struct LaneUse {
  double busy = 0;  ///< seconds in which an op of the lane is running
  /// Seconds in which the lane is busy and the gpu lane is not: what it costs, unless another lane
  /// is exposed at the same time. Of the gpu lane itself: 0.
  double exposed = 0;
  /// Seconds of the critical path spent in the lane. The path is the chain of ops, without gaps,
  /// that ends with the step; over all lanes its seconds add up to the step.
  double critical = 0;
};

struct Prediction {
  std::vector<OpTiming> ops;  ///< by op of the plan
  double step_seconds = 0;
  /// The step on a machine at the pace of the faster and of the slower quarter of its measurements;
  /// both 0: its rates have no quarters.
  double fast_seconds = 0, slow_seconds = 0;
  std::array<LaneUse, kMachineLanes> lanes;
  double gpu_idle = 0;  ///< step_seconds less the gpu lane's busy time
  /// The lane with the longest part of the critical path; the earlier lane of equals; gpu if empty.
  Lane bounding = Lane::gpu;

  [[nodiscard]] const LaneUse& operator[](Lane lane) const {
    return lanes[static_cast<std::size_t>(lane)];
  }
};

/// Seconds of the op's work with no other lane active, overhead not included. Throws
/// `Error{invalid_argument}` if the op uses a rate that the profile lacks.
[[nodiscard]] double work_seconds(const MachineProfile& profile, const Op& op);

/// Generous bound on the relative error of sums of an op's seconds in another order: 10^7 ops round
/// by 10^-16 each.
inline constexpr double kSumRounding = 1e-9;

/// Predicts the plan. Throws `Error{invalid_argument}` if an op depends on itself or on a later op,
/// names no lane, or uses a rate that the profile lacks.
[[nodiscard]] Prediction simulate(const StepPlan& plan, const MachineProfile& profile);

/// Predicts a plan whose step takes at most so many seconds; returns nothing for a longer one, as
/// soon as that is known.
[[nodiscard]] std::optional<Prediction> simulate_within(const StepPlan& plan,
                                                        const MachineProfile& profile,
                                                        double seconds);

/// Predicts the lists of all stages of a pipeline, which begin together; each has a machine of this
/// profile to itself. A send and its receive start together. Each prediction has the seconds until
/// the last stage ends, and no critical path. Throws `Error{invalid_argument}` as `simulate` does,
/// and if messages wait for each other.
[[nodiscard]] std::vector<Prediction> simulate_stages(std::span<const StepPlan> stages,
                                                      const MachineProfile& profile);

}  // namespace spillway::plan
