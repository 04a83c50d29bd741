// The speed of a step as shares: of what was planned, and of what the GPU could compute at most.
// Pure.
#pragma once

#include <optional>
#include <string>

#include "runtime/engine/train_events.hpp"

namespace spillway::cli {

class SpeedShares {
 public:
  explicit SpeedShares(const engine::TrainPlan& plan);

  /// Returns "98% of plan" for a step of `seconds` and, on a GPU whose data sheet is known, "98% of
  /// plan, 41% of peak": the FLOPs of the model alone, without recomputation, over the peak of
  /// dense products in the compute type.
  [[nodiscard]] std::string text(double seconds) const;

 private:
  double planned_;                 // seconds of a step
  std::optional<double> at_peak_;  // likewise, if the GPU did nothing else at its peak
};

}  // namespace spillway::cli
