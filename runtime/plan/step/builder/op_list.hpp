// OpList: the ops of a plan so far, each with what it has to wait for.
#pragma once

#include <cstdint>

#include "runtime/plan/step/dependency_tracker.hpp"
#include "runtime/plan/step/op_draft.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::plan {

class OpList {
 public:
  /// Begins a new list in the memory of the last.
  void clear();
  /// Appends the op as one of `round`, with the dependencies that follow from its buffers.
  void append(const OpDraft& draft, std::uint32_t round);
  [[nodiscard]] StepPlan& plan() { return plan_; }
  [[nodiscard]] const StepPlan& plan() const { return plan_; }

 private:
  StepPlan plan_;
  DependencyTracker tracker_;
};

}  // namespace spillway::plan
