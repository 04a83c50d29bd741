#include "runtime/engine/training/step_lists.hpp"

#include <algorithm>

#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {

namespace {

void add_speculation(StepEngine& engine, plan::WhichList which, StepLists::OfStep& lists) {
  const auto step = [&](const plan::Speculation& speculation) {
    which.speculation = speculation;
    return engine.prepare(plan::build_training_step(engine.workload(), engine.placement(), which));
  };
  lists.speculating = step({.found = false, .made = true});
  lists.step_behind = step({.found = true, .made = false});
  lists.speculating_behind = step({.found = true, .made = true});
  lists.flush_behind =
      engine.prepare(plan::build_flush(engine.workload(), engine.placement(), which));
}

}  // namespace

StepLists::StepLists(StepEngine& engine)
    : snapshot_(engine.prepare(plan::build_snapshot(engine.workload(), engine.placement()))) {
  const plan::Workload& work = engine.workload();
  const plan::Placement& placement = engine.placement();
  plan::WhichList which{.place = engine.ranks().place(), .speculation = plan::kNothingAhead};
  for (; which.phase < work.stale.phases; ++which.phase) {
    OfStep& lists = by_phase_.emplace_back();
    lists.step = engine.prepare(plan::build_training_step(work, placement, which));
    lists.recorded = engine.prepare(plan::build_recorded_step(work, placement, which));
    lists.flush = engine.prepare(plan::build_flush(work, placement, which));
    if (placement.speculative_blocks > 0) add_speculation(engine, which, lists);
    if (work.stale.stays_full()) {
      lists.fill = engine.prepare(plan::build_fill(work, placement, which));
    }
  }
}

const plan::StepPlan& StepLists::step_plan() const {
  const OfStep& first = by_phase_.front();
  return first.speculating_behind ? first.speculating_behind->plan() : first.step->plan();
}

std::size_t StepLists::most_ops() const {
  const OfStep& first = by_phase_.front();
  const std::size_t recorded = first.recorded->plan().ops.size();
  return first.speculating ? std::max(recorded, first.speculating->plan().ops.size()) : recorded;
}

}  // namespace spillway::engine
