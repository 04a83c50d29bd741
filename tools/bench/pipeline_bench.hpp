// Measures what stages of a pipeline wait for each other: the lists of their steps run in executors
// and exchange messages, but a pass only takes its time. Stages are threads of this process.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/pipeline/schedule.hpp"

namespace spillway::bench {

struct PipelineCase {
  plan::Pipeline pipeline;
  double forward_seconds = 0.02;   ///< of a stage, one round through all its chunks
  double backward_seconds = 0.04;  ///< the same
  /// Whether stages clip the gradient, and so meet after each step; else they meet as seldom as
  /// those of a run.
  bool clips = true;
  std::uint32_t meetings = 3;  ///< the time between two is measured, and that often
};

/// A step of the pipeline in the steady state, simulated and measured.
struct PipelineMeasurement {
  double published_bubble = 0;  ///< by the papers' formulas
  double simulated_bubble = 0;
  std::vector<double> bubbles;              ///< from each meeting to the next
  std::uint32_t published_activations = 0;  ///< of rounds and chunks, on the first stage
  std::uint32_t activations = 0;            ///< at most at once, measured

  [[nodiscard]] double bubble() const;  ///< Returns the median.
};

/// Throws `Error{invalid_argument}` for a pipeline that is none, and `Error{not_supported}` for one
/// whose steps no list runs.
[[nodiscard]] PipelineMeasurement measure_pipeline(const PipelineCase& what);

}  // namespace spillway::bench
