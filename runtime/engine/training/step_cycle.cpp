#include "runtime/engine/training/step_cycle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/model/part_map.hpp"

namespace spillway::engine {
namespace {

/// Returns what of the model a rank of a tensor group has; nothing for one that has all of it.
std::optional<model::PartMap> part_map(const StepEngine& engine) {
  const std::uint32_t count = engine.workload().tensor.count;
  if (count == 1) return std::nullopt;
  const std::uint32_t index = engine.ranks().place().tensor_index();
  return model::PartMap(engine.model_config(), {.index = index, .count = count});
}

/// Whether the saved blocks are those of the model that is trained.
bool has_blocks_of(const SavedState& source, const StepEngine& engine) {
  if (engine.workload().tensor.count > 1) {
    return std::ranges::equal(source.blocks(), model::make_layout(engine.model_config()).blocks,
                              [](ElementCount saved, const model::BlockLayout& b) {
                                return saved == b.padded_parameters;
                              });
  }
  const auto fits = [](ElementCount saved, const plan::BlockShape& block) {
    return !block.has_parameters() || saved == plan::pad(block.parameters, 1);
  };
  return std::ranges::equal(source.blocks(), engine.workload().blocks, fits);
}

}  // namespace

StepCycle::StepCycle(StepEngine& engine, const TrainingState& first)
    : engine_(engine),
      state_(first),
      saved_rank_(saved_rank_of(engine.workload(), engine.ranks().place())),
      lists_(engine),
      last_step_(lists_.after(0).step.get()),
      state_io_(engine),
      commits_(engine, state_io_, Commits::ranks_in_step(engine)) {
  decided_.commit.payload.reserve(nvme_swap::kMaxCommitPayload);
  engine.actions().follow(decided_);
  if (engine.state_store().start == Start::resumed) resume();
}

/// A commit does not hold all that a pipeline which stays full goes on from.
void StepCycle::resume() {
  check(
      !engine_.workload().stale.stays_full(), ErrorCode::not_supported,
      "a run with stale weights cannot be resumed: its commits hold the newest weights, and the "
      "next step uses those before them; start a new run --from it, which begins with the newest");
  state_ = commits_.resume();
  state_io_.restore();
  decided_.stash_due = !delays_updates();  // a stash has come with the state
  if (!engine_.state_store().resume_at) return;
  // No rank gives up a commit before the state of all of them has been read and is sound.
  engine_.ranks().barrier();
  engine_.store()->go_back();
}

void StepCycle::initialize(const model::ParameterSource& source) {
  const std::optional<model::PartMap> part = part_map(engine_);
  if (part) return state_io_.initialize(model::PartView(source, *part));
  state_io_.initialize(source);
}

void StepCycle::take(const SavedState& source) {
  check(has_blocks_of(source, engine_), ErrorCode::invalid_argument,
        fmt::format("{} holds the state of another model, or of one in other operator tiles; start "
                    "from it with the model and the spillway.operator_tile that it was saved with",
                    source.folder().string()));
  const std::optional<model::PartMap> part = part_map(engine_);
  state_io_.adopt(source, part ? &*part : nullptr);
  has_versions_ = is_full_ = false;
  decided_.stash_due = true;
  ahead_ = Ahead::none;
  state_ = source.state();
}

void StepCycle::adopt(const SavedState& source) {
  take(source);
  commit();
}

void StepCycle::read_masters(std::uint32_t block, std::span<float> masters) {
  flush(Commit::no);
  state_io_.read_masters(block, masters);
}

bool StepCycle::decide(const TrainingState& state) {
  state_ = state;
  const PendingUpdate& update = decided_.update;
  const PendingUpdate& expected = decided_.ahead;
  const bool as_expected = update.pending && expected.pending && update.groups == expected.groups;
  if (is_ahead()) settle(as_expected ? Ahead::kept : Ahead::none);
  return as_expected;
}

/// The slot that the update has read is the committed one, and the gradient is still there: undone,
/// the blocks are updated as all others are.
void StepCycle::settle(Ahead made) {
  if (made == Ahead::none) state_io_.undo(engine_.placement().first_speculative());
  ahead_ = made;
  sound_ = true;
}

/// An error in the middle of a list leaves some tiles updated and some not.
const Executor& StepCycle::run(Executor& executor) {
  sound_ = false;
  executor.run(engine_.actions());
  sound_ = true;
  return executor;
}

/// `writes`: by the list that is about to run.
void StepCycle::prepare(Commit commit, Writes writes) {
  if (delays_updates()) writes = Writes::some;  // no list writes the stash
  decided_.disk = commits_.decide(state_, decided_.update, commit, writes);
  decided_.commit.step = StepIndex{state_.step};
  encode(state_, saved_rank_, decided_.commit.payload);
}

void StepCycle::finish() {
  decided_.update.pending = false;
  ahead_ = Ahead::none;
  commits_.finish(state_, std::exchange(decided_.disk, {}));
}

/// At first all versions of the weights are the same.
void StepCycle::fill() {
  flush(Commit::no);
  for (const StepLists::OfStep& lists : lists_.by_phase()) {
    if (has_versions_) break;
    decided_.stash_due = true;
    run(*lists.flush);
  }
  has_versions_ = true;
  decided_.stash_due = false;
  run(*next().fill);
  is_full_ = true;
}

/// The newest version of every tile must be the committed one by the time of the first write ahead.
/// A copy gets what the list writes, or what is newest behind it.
bool StepCycle::may_speculate() const {
  const bool committed = decided_.disk.commits || commits_.committed_step() == state_.step;
  return next().speculating && committed && !commits_.copying();
}

Executor& StepCycle::list_of_step(Ahead leaves) const {
  const bool speculates = leaves == Ahead::undecided;
  const StepLists::OfStep& lists = next();
  if ((decided_.disk.commits || commits_.copying()) && !commits_.in_step()) return *lists.recorded;
  if (has_kept()) return speculates ? *lists.speculating_behind : *lists.step_behind;
  return speculates ? *lists.speculating : *lists.step;
}

/// A commit has the stash of the next step, which no list writes: it is made here. A step that is
/// not delayed uses a stash of the newest weights.
void StepCycle::begin_beside_update() {
  if (commits_next() || commits_.copying()) commit();
  if (state_.step + 1 >= engine_.options().delayed_from) return;
  flush(Commit::no);
  decided_.stash_due = true;
}

/// Inside this list the previous step's update lands, and with it that step becomes committable.
const Executor& StepCycle::run_step(float loss_gradient_scale, Speculate speculate) {
  decided_.loss_gradient_scale = loss_gradient_scale;
  if (delays_updates()) begin_beside_update();
  if (engine_.workload().stale.stays_full() && !is_full_) fill();
  prepare(commits_next() ? Commit::yes : Commit::no, has_kept() ? Writes::some : Writes::all);
  const bool speculates = speculate == Speculate::yes && may_speculate();
  const Ahead leaves = speculates ? Ahead::undecided : Ahead::none;
  last_step_ = &run(list_of_step(leaves));
  finish();
  ahead_ = leaves;
  sound_ = leaves == Ahead::none;
  decided_.stash_due = true;
  commits_.complete_copy();
  return *last_step_;
}

const Executor& StepCycle::flush(Commit commit) {
  const bool in_step = commits_.in_step() && !delays_updates();
  const bool due = (commit == Commit::yes && in_step) || (in_step && evaluation_commits());
  prepare(due ? Commit::yes : Commit::no, in_step && !has_kept() ? Writes::all : Writes::some);
  const bool committed = decided_.disk.commits;
  const Executor& executor = run(has_kept() ? *next().flush_behind : *next().flush);
  finish();
  decided_.stash_due = false;
  if (committed) await_all_ranks();
  return executor;
}

/// A step's list is followed by an exchange of sums, in which every rank waits for the others.
/// Other lists have none, so this barrier keeps the previous commit until all ranks have the new
/// one.
void StepCycle::await_all_ranks() { engine_.ranks().barrier(); }

void StepCycle::snapshot() {
  prepare(Commit::yes,
          engine_.placement().any_state(plan::Tier::nvme) ? Writes::some : Writes::all);
  const bool committed = decided_.disk.commits;
  if (!committed && decided_.disk.copy == nullptr) return;
  run(lists_.snapshot());
  finish();
  if (committed) await_all_ranks();
}

/// The next commit has it; one that is there already has its own.
void StepCycle::keep_stash() {
  if (commits_.committed_step() == state_.step) return;
  state_io_.keep_stash();
}

void StepCycle::commit() {
  const bool commits = engine_.placement().commits;
  flush(commits ? Commit::yes : Commit::no);
  if (!commits) return;
  if (delays_updates()) keep_stash();
  if (delays_updates() || !commits_.in_step()) snapshot();
  commits_.complete_copy();
}

void StepCycle::copy_now(const nvme_swap::StoreOptions& options) {
  flush(Commit::no);
  try {
    commits_.copy_next(options);
    prepare(Commit::no, Writes::all);
    if (decided_.disk.copy == nullptr) return commits_.complete_copy_of_newest(decided_.commit);
    run(lists_.snapshot());
    finish();
  } catch (...) {
    // Half a copy is of no use.
    decided_.disk = {};
    commits_.abandon_copy();
    throw;
  }
}

}  // namespace spillway::engine
