// The plans of an embedded trainer: which a step runs, and the ops of each, which the forecast adds
// up. The trainer runs lists of the same builders as calls ask for them. Pure, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/embedded_trainer.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// What the control thread runs. Where parameters are streamed, `step` is one forward pass.
enum class EmbeddedPlan : std::uint8_t { step, backward, norms, update };

[[nodiscard]] plan::StepPlan ops_of(EmbeddedPlan plan, const plan::Workload& workload,
                                    const plan::Placement& placement);

/// Returns the plan of a unit's pass.
[[nodiscard]] EmbeddedPlan plan_of(EmbeddedPass pass);
/// Returns the plan after which the norms of all gradients of a step can be had.
[[nodiscard]] EmbeddedPlan gathering_plan(const plan::Workload& workload);
/// Returns the plan that applies what `EmbeddedTrainer::step` has decided: one of its own, or the
/// next step's first, beside whose forward pass a deferred update runs.
[[nodiscard]] EmbeddedPlan updating_plan(const EmbeddedOptions& options);

/// A plan, and how often a step runs it.
struct PlanRuns {
  enum class Update : std::uint8_t { none, pending };
  EmbeddedPlan plan = EmbeddedPlan::step;
  Update update = Update::none;  ///< what it finds decided and applies
  double times = 1;
};

/// Returns what a step runs between two of the same kind, with as many passes as gradients of each
/// parameter. Passes on streamed parameters have a plan each; where parameters are not streamed,
/// one plan has all of them.
[[nodiscard]] std::vector<PlanRuns> runs_of_step(const EmbeddedOptions& options,
                                                 const plan::Workload& workload);
/// Returns the number of backward passes of a step: at least one.
[[nodiscard]] std::uint32_t passes_of_step(const EmbeddedOptions& options);

}  // namespace spillway::engine
