// Builds the op lists of a run from a workload and its placement. Pure: equal inputs, equal lists.
#pragma once

#include <cstdint>

#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/ranks.hpp"
#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// What a list has of the updates of `Placement::speculative_blocks`. No effect where there are
/// none.
struct Speculation {
  bool found = true;  ///< those of the step before are kept, and need no update here
  bool made = true;   ///< in the last round's backward they are updated, as if nothing were clipped
};
inline constexpr Speculation kNothingAhead{.found = false, .made = false};

/// What sets apart the lists of one workload and placement.
struct WhichList {
  /// Place of the rank that runs it, whose part of a sum over a tensor group may be a little larger
  /// than another's.
  GridPlace place{};
  /// Number among those that steps of a pipeline that stays full use in rotation (StaleStage).
  std::uint32_t phase = 0;
  Speculation speculation{};
};

/// Returns one training step in deferred mode: the previous step's update (ops marked
/// `if_pending`), block by block just ahead of the block's forward; then the rounds, in the last of
/// which each block's norms follow its gradient; then the first reads of the next step's state. In
/// a pipeline that stays full (StaleStage) the update stands first, and the step has the
/// first passes of the next one. Speculative blocks are updated in the last round's backward, each
/// behind its gradient, and go to the spare slots of their tiles once the commit is durable.
[[nodiscard]] StepPlan build_training_step(const Workload& workload, const Placement& placement,
                                           const WhichList& which = {});

/// Returns a training step in which all state that lives in memory also goes to disk, each tile as
/// soon as it is updated; then the commit, while forward and backward go on.
[[nodiscard]] StepPlan build_recorded_step(const Workload& workload, const Placement& placement,
                                           const WhichList& which = {});

/// Returns the passes of a step that a pipeline which stays full runs ahead of it, for a step that
/// finds the pipeline empty. No update is pending.
[[nodiscard]] StepPlan build_fill(const Workload& workload, const Placement& placement,
                                  const WhichList& which = {});

/// Returns only the pending update and its commit: after the last step, before an evaluation or a
/// snapshot. By default it has all blocks.
[[nodiscard]] StepPlan build_flush(const Workload& workload, const Placement& placement,
                                   const WhichList& which = {.speculation = kNothingAhead});

/// Returns forward and loss of one round of micro-batches, no gradients.
[[nodiscard]] StepPlan build_evaluation(const Workload& workload, const Placement& placement,
                                        const WhichList& which = {});

/// Returns a list that writes the state of all tiles that do not live on disk, and then commits. No
/// update is pending.
[[nodiscard]] StepPlan build_snapshot(const Workload& workload, const Placement& placement);

/// Returns a backward pass, or the norms of the gradients of all such passes, where another
/// framework runs the passes on streamed parameters. `build_training_step` is a forward pass alone
/// then.
[[nodiscard]] StepPlan build_external_backward(const Workload& workload,
                                               const Placement& placement);
[[nodiscard]] StepPlan build_external_norms(const Workload& workload, const Placement& placement);

}  // namespace spillway::plan
