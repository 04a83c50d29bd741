#include "runtime/engine/training/step_lists.hpp"

#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {

StepLists::StepLists(StepEngine& engine)
    : snapshot_(engine.prepare(plan::build_snapshot(engine.workload(), engine.placement()))) {
  const plan::Workload& work = engine.workload();
  const plan::Placement& placement = engine.placement();
  plan::WhichList which{.place = engine.ranks().place()};
  for (; which.phase < work.stale.phases; ++which.phase) {
    OfStep& lists = by_phase_.emplace_back();
    lists.step = engine.prepare(plan::build_training_step(work, placement, which));
    lists.recorded = engine.prepare(plan::build_recorded_step(work, placement, which));
    lists.flush = engine.prepare(plan::build_flush(work, placement, which));
    if (work.stale.stays_full()) {
      lists.fill = engine.prepare(plan::build_fill(work, placement, which));
    }
  }
}

}  // namespace spillway::engine
