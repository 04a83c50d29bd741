// StepEnd: what a step does once the framework's passes are over. It completes the gradients,
// computes their norm, and decides and starts the update. One thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/embedded/gradients/gradients.hpp"
#include "runtime/engine/embedded/passes/plan_runner.hpp"
#include "runtime/engine/embedded/passes/unit_passes.hpp"
#include "runtime/engine/embedded/passes/use_record.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/embedded/update/updates.hpp"
#include "runtime/engine/embedded/values/parameter_state.hpp"

namespace spillway::engine {

/// What takes part in the end of a step; all outlive StepEnd.
struct StepEndParts {
  StepEngine& engine;
  EmbeddedValues& values;
  const ParameterState& state;
  UseRecord& record;
  PlanRunner& runner;
  UnitPasses& passes;
  GradientCounts& gradient_counts;
  EmbeddedGradients& gradients;
  EmbeddedUpdates& updates;
};

class StepEnd {
 public:
  /// Keeps references to all arguments, which outlive this object.
  StepEnd(const EmbeddedOptions& options, const EmbeddedLayout& layout, const StepEndParts& parts);

  // As EmbeddedTrainer describes these

  [[nodiscard]] std::span<const double> leaf_sums();
  [[nodiscard]] double grad_norm(double divisor);
  EmbeddedResult step(const EmbeddedStep& step);

 private:
  void gather();

  const EmbeddedOptions& options_;
  const EmbeddedLayout& layout_;
  const StepEndParts parts_;
  std::vector<std::uint64_t> elements_;  ///< by parameter
  std::vector<double> leaf_sums_;        ///< of all parameters, in their order
};

}  // namespace spillway::engine
