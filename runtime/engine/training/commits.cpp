#include "runtime/engine/training/commits.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway::engine {

InStep Commits::ranks_in_step(StepEngine& engine) {
  const bool own = engine.placement().all_state_on_disk();
  return engine.ranks().any(own ? Vote::no : Vote::yes) ? InStep::some : InStep::all;
}

Commits::Commits(StepEngine& engine, StateIo& state_io, InStep ranks_in_step)
    : engine_(engine), copy_(engine, state_io), ranks_in_step_(ranks_in_step) {}

bool Commits::due_next(const TrainingState& state) const {
  const std::uint64_t every = engine_.plan().commit_every;
  const bool due =
      engine_.placement().commits && every > 0 && state.step > 0 && state.step % every == 0;
  return (due || copying()) && committed_step_ != state.step;
}

bool Commits::due_to_evaluate(const TrainingState& state, const PendingUpdate& update) const {
  // A stage whose own gradients are finite has an update, also of a step that others skip.
  const bool updates = update.pending && state.skipped_in_a_row == 0;
  return ranks_in_step_ == InStep::all && copying() && updates && committed_step_ != state.step;
}

TrainingState Commits::resume() {
  const auto& committed = engine_.store()->committed();
  check(committed.has_value(), ErrorCode::invalid_argument,
        "the run has no committed step to resume from");
  const SavedRank saved = decode_rank(committed->payload);
  const SavedRank now = saved_rank_of(engine_.workload(), engine_.ranks().place());
  check(saved.grid == now.grid && saved.rank == now.rank && saved.layers == now.layers,
        ErrorCode::invalid_argument,
        fmt::format("{} holds the state of {}, and this is {}; resume on the same grid of ranks, "
                    "or start a new run from it",
                    engine_.state_store().options.directories.front().string(), to_text(saved),
                    to_text(now)));
  check(engine_.store()->layout().tiles == engine_.slots().store_layout().tiles,
        ErrorCode::corrupt_data,
        "the run's state was written with another model, tile size, state format or sharding");
  TrainingState state = decode(committed->payload);
  committed_step_ = state.step;
  return state;
}

DiskDecision Commits::decide(const TrainingState& state, const PendingUpdate& update, Commit commit,
                             Writes writes) const {
  const bool complete =
      writes == Writes::all && (update.pending || !engine_.placement().any_state(plan::Tier::nvme));
  return {.commits =
              commit == Commit::yes && engine_.store() != nullptr && committed_step_ != state.step,
          .copy = complete ? copy_.store() : nullptr};
}

void Commits::finish(const TrainingState& state, const DiskDecision& made) {
  if (made.commits) committed_step_ = state.step;
  if (made.copy != nullptr) copy_.close();
}

void Commits::complete_copy() {
  if (!copying()) return;
  const auto& committed = engine_.store()->committed();
  SPILLWAY_ASSERT(committed.has_value());
  copy_.fill(*committed);
}

}  // namespace spillway::engine
