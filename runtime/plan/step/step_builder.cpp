#include "runtime/plan/step/step_builder.hpp"

#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

StepPlan build_training_step(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.training();
  return builder.take();
}

StepPlan build_recorded_step(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement, /*records=*/true);
  builder.training();
  return builder.take();
}

StepPlan build_flush(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.flush();
  return builder.take();
}

StepPlan build_evaluation(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.evaluation();
  return builder.take();
}

StepPlan build_snapshot(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.snapshot();
  return builder.take();
}

StepPlan build_external_backward(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.external_backward();
  return builder.take();
}

StepPlan build_external_norms(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.external_norms();
  return builder.take();
}

}  // namespace spillway::plan
