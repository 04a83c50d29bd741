#include "runtime/engine/embedded/plan/embedded_plan.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {

plan::StepPlan ops_of(EmbeddedPlan plan, const plan::Workload& workload,
                      const plan::Placement& placement) {
  switch (plan) {
    case EmbeddedPlan::step: return plan::build_training_step(workload, placement);
    case EmbeddedPlan::backward: return plan::build_external_backward(workload, placement);
    case EmbeddedPlan::norms: return plan::build_external_norms(workload, placement);
    case EmbeddedPlan::update: return plan::build_flush(workload, placement);
  }
  SPILLWAY_ASSERT(false);
}

EmbeddedPlan plan_of(EmbeddedPass pass) {
  return pass == EmbeddedPass::forward ? EmbeddedPlan::step : EmbeddedPlan::backward;
}

EmbeddedPlan gathering_plan(const plan::Workload& workload) {
  return workload.streams_external ? EmbeddedPlan::norms : EmbeddedPlan::step;
}

EmbeddedPlan updating_plan(const EmbeddedOptions& options) {
  return options.defers_updates ? EmbeddedPlan::step : EmbeddedPlan::update;
}

std::uint32_t passes_of_step(const EmbeddedOptions& options) {
  return std::max(options.gradients_per_step, 1U);
}

std::vector<PlanRuns> runs_of_step(const EmbeddedOptions& options, const plan::Workload& workload) {
  const bool streams = workload.streams_external;
  const double passes = passes_of_step(options);
  const EmbeddedPlan updating = updating_plan(options);
  double forwards = streams ? passes : 1;
  std::vector<PlanRuns> runs{{.plan = updating, .update = PlanRuns::Update::pending}};
  if (updating == EmbeddedPlan::step) --forwards;
  runs.push_back({.plan = EmbeddedPlan::step, .times = forwards});
  if (!streams) return runs;
  runs.push_back({.plan = plan_of(EmbeddedPass::backward), .times = passes});
  runs.push_back({.plan = gathering_plan(workload)});
  return runs;
}

}  // namespace spillway::engine
