#include "runtime/engine/training/step_lists.hpp"

#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {

StepLists::StepLists(StepEngine& engine)
    : snapshot_(engine.prepare(plan::build_snapshot(engine.workload(), engine.placement()))) {
  const plan::Workload& work = engine.workload();
  const plan::Placement& placement = engine.placement();
  const plan::GridPlace& place = engine.ranks().place();
  for (std::uint32_t phase = 0; phase < work.stale.phases; ++phase) {
    OfStep& lists = by_phase_.emplace_back();
    lists.step = engine.prepare(plan::build_training_step(work, placement, place, phase));
    lists.recorded = engine.prepare(plan::build_recorded_step(work, placement, place, phase));
    lists.flush = engine.prepare(plan::build_flush(work, placement, place, phase));
    if (work.stale.stays_full()) {
      lists.fill = engine.prepare(plan::build_fill(work, placement, place, phase));
    }
  }
}

}  // namespace spillway::engine
