#include "runtime/engine/training/step_lists.hpp"

#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {

StepLists::StepLists(StepEngine& engine)
    : snapshot_(engine.prepare(plan::build_snapshot(engine.workload(), engine.placement()))) {
  plan::Workload at = engine.workload();
  const plan::Placement& placement = engine.placement();
  for (at.stage.phase = 0; at.stage.phase < at.stage.phases; ++at.stage.phase) {
    OfStep& lists = by_phase_.emplace_back();
    lists.step = engine.prepare(plan::build_training_step(at, placement));
    lists.recorded = engine.prepare(plan::build_recorded_step(at, placement));
    lists.flush = engine.prepare(plan::build_flush(at, placement));
    if (at.stage.stays_full()) lists.fill = engine.prepare(plan::build_fill(at, placement));
  }
}

}  // namespace spillway::engine
