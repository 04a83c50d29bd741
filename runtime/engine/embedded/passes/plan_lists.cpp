#include "runtime/engine/embedded/passes/plan_lists.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::engine {

PlanLists::PlanLists(StepEngine& engine, StepCycle& cycle, ParameterState& state, UseRecord& record)
    : engine_(engine), cycle_(cycle), state_(state), record_(record) {
  const plan::Workload& workload = engine.workload();
  if (!workload.streams_external) return;
  backward_ = engine.prepare(ops_of(EmbeddedPlan::backward, workload, engine.placement()));
  norms_ = engine.prepare(ops_of(EmbeddedPlan::norms, workload, engine.placement()));
}

std::size_t PlanLists::most_ops() const {
  std::size_t ops = cycle_.lists().most_ops();
  for (const Executor* list : {backward_.get(), norms_.get()}) {
    if (list != nullptr) ops = std::max(ops, list->plan().ops.size());
  }
  return ops;
}

void PlanLists::run(EmbeddedPlan plan) {
  if (offload::SharedDevice* device = engine_.backend().shared()) device->bind_thread();
  state_.unstage();
  record_.note(plan, run_list_of(plan), engine_.actions());
}

/// Returns the executor that has run last.
const Executor& PlanLists::run_list_of(EmbeddedPlan plan) {
  switch (plan) {
    case EmbeddedPlan::step: return cycle_.run_step();
    case EmbeddedPlan::backward: return cycle_.run(*backward_);
    case EmbeddedPlan::norms: return cycle_.run(*norms_);
    case EmbeddedPlan::update: return cycle_.flush(Commit::no);
  }
  SPILLWAY_ASSERT(false);
}

}  // namespace spillway::engine
