#include "runtime/plan/step/step_builder.hpp"

#include "runtime/plan/step/builder/builder.hpp"

namespace spillway::plan {
namespace {

using List = void (Builder::*)();

StepPlan build(const Workload& workload, const Placement& placement, List list,
               const GridPlace& place = {}, std::uint32_t phase = 0, bool records = false) {
  Builder builder(workload, placement, place, phase, records);
  (builder.*list)();
  return builder.take();
}

}  // namespace

StepPlan build_training_step(const Workload& workload, const Placement& placement,
                             const GridPlace& place, std::uint32_t phase) {
  return build(workload, placement, &Builder::training, place, phase);
}

StepPlan build_recorded_step(const Workload& workload, const Placement& placement,
                             const GridPlace& place, std::uint32_t phase) {
  return build(workload, placement, &Builder::training, place, phase, /*records=*/true);
}

StepPlan build_fill(const Workload& workload, const Placement& placement, const GridPlace& place,
                    std::uint32_t phase) {
  return build(workload, placement, &Builder::fill, place, phase);
}

StepPlan build_flush(const Workload& workload, const Placement& placement, const GridPlace& place,
                     std::uint32_t phase) {
  return build(workload, placement, &Builder::flush, place, phase);
}

StepPlan build_evaluation(const Workload& workload, const Placement& placement,
                          const GridPlace& place) {
  return build(workload, placement, &Builder::evaluation, place);
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
