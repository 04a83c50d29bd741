#include "runtime/plan/step/step_builder.hpp"

#include "runtime/plan/step/builder/builder.hpp"

namespace spillway::plan {
namespace {

using List = void (Builder::*)();

StepPlan build(const Workload& workload, const Placement& placement, List list,
               const WhichList& which = {}, bool records = false) {
  Builder builder(workload, placement, which, records);
  (builder.*list)();
  return builder.take();
}

}  // namespace

StepPlan build_training_step(const Workload& workload, const Placement& placement,
                             const WhichList& which) {
  return build(workload, placement, &Builder::training, which);
}

StepPlan build_recorded_step(const Workload& workload, const Placement& placement,
                             const WhichList& which) {
  const WhichList recorded{
      .place = which.place, .phase = which.phase, .speculation = kNothingAhead};
  return build(workload, placement, &Builder::training, recorded, /*records=*/true);
}

StepPlan build_fill(const Workload& workload, const Placement& placement, const WhichList& which) {
  return build(workload, placement, &Builder::fill, which);
}

StepPlan build_flush(const Workload& workload, const Placement& placement, const WhichList& which) {
  return build(workload, placement, &Builder::flush, which);
}

StepPlan build_evaluation(const Workload& workload, const Placement& placement,
                          const WhichList& which) {
  return build(workload, placement, &Builder::evaluation, which);
}

StepPlan build_snapshot(const Workload& workload, const Placement& placement) {
  return build(workload, placement, &Builder::snapshot);
}

StepPlan build_external_backward(const Workload& workload, const Placement& placement) {
  return build(workload, placement, &Builder::external_backward);
}

StepPlan build_external_norms(const Workload& workload, const Placement& placement) {
  return build(workload, placement, &Builder::external_norms);
}

}  // namespace spillway::plan
