// StepCycle: a state in training, and what repeats around the list of a step, whoever runs the
// passes: the pending update that the next list applies, what that makes true on disk, and state
// that is read or written between lists. It knows nothing of files other than the tile store.
// Control thread only.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/engine/state/training_state.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/training/commits.hpp"
#include "runtime/engine/training/state_io.hpp"
#include "runtime/engine/training/step_lists.hpp"

namespace spillway::engine {

/// Whether a step makes updates ahead, where it can.
enum class Speculate : std::uint8_t { no, yes };

class StepCycle {
 public:
  /// Makes all lists ready to run on `engine`, which outlives this object, and reads the state that
  /// its store has committed, if it resumes one; another begins with `first`. All ranks make theirs
  /// at once.
  explicit StepCycle(StepEngine& engine, const TrainingState& first = {});
  StepCycle(const StepCycle&) = delete;
  StepCycle& operator=(const StepCycle&) = delete;

  // State, between lists

  /// Sets the state of step 0: masters from `source`, which has the blocks of the whole model also
  /// where this rank has a part of them.
  void initialize(const model::ParameterSource& source);
  /// Takes this rank's part of what another run of the same model has saved, with any number of
  /// ranks, in any stage, tier and format. After `Overtaken` the state is undefined: take one again
  /// or initialize.
  void take(const SavedState& source);
  /// Takes it likewise, and commits it here. All ranks adopt at once.
  void adopt(const SavedState& source);
  /// Reads the masters of one block after all updates; [padded] fp32.
  void read_masters(std::uint32_t block, std::span<float> masters);
  /// Returns the state after the last step that is decided.
  [[nodiscard]] const TrainingState& state() const { return state_; }
  /// Whether an update is decided that no list has applied.
  [[nodiscard]] bool has_pending() const { return decided_.update.pending; }
  /// Replaces the numbers of the state that are known, or set, only after their step was decided.
  void amend(const TrainingState& state) { state_ = state; }
  /// Whether the state in memory can be committed: no error has interrupted an operation.
  [[nodiscard]] bool is_sound() const { return sound_; }

  // The decision that ends a step. Both updates have the memory of earlier ones.

  /// Returns the update that a step makes if nothing in it is clipped or skipped, for whoever has
  /// it made ahead to set before the step's list runs.
  [[nodiscard]] PendingUpdate& expected_update() { return decided_.ahead; }
  /// Returns the update that the next list applies, for whoever decides it to set behind the step's
  /// list. None is pending until then.
  [[nodiscard]] PendingUpdate& next_update() { return decided_.update; }
  /// Ends the step whose list has run: `state` is that after it. Returns whether `next_update` is
  /// the expected one. If so, what the list has updated ahead is kept, and else undone; nothing
  /// else throws.
  bool decide(const TrainingState& state);
  /// Whether the last list has made updates ahead that no decision has kept or undone.
  [[nodiscard]] bool is_ahead() const { return ahead_ == Ahead::undecided; }
  /// Whether the pending update of the speculative blocks is made, and kept.
  [[nodiscard]] bool has_kept() const { return ahead_ == Ahead::kept; }

  // Lists. These return the executor that has run, with its timings.

  /// Runs the list of a step, and with it the pending update; then no update is pending. Where
  /// updates are delayed, and the step is not before `TrainOptions::delayed_from`, its passes do
  /// not wait for the update and lack it.
  /// `loss_gradient_scale`: loss scale / targets of the step; of another framework's passes, any.
  /// `speculate`: the list makes the expected update ahead, for the speculative blocks of the
  /// placement, unless what it would overwrite is not committed.
  const Executor& run_step(float loss_gradient_scale = 0, Speculate speculate = Speculate::no);
  /// Applies the pending update.
  const Executor& flush(Commit commit);
  /// Runs another list of the same engine.
  const Executor& run(Executor& executor);
  /// Calls `work`, which runs lists that use the memory of rounds in flight: the next step of a
  /// pipeline that stays full runs their passes again, with the same bits.
  template <class Work>
  void run_over_rounds_in_flight(const Work& work) {
    is_full_ = false;
    sound_ = false;
    work();
    sound_ = true;
  }
  /// Returns the executor of the last step.
  [[nodiscard]] const Executor& last_step() const { return *last_step_; }
  [[nodiscard]] const StepLists& lists() const { return lists_; }

  // The disk

  /// Applies the pending update and makes the current step true on disk, if the placement commits.
  void commit();
  /// Creates a store as `options` say that holds the state after the last step, and commits it.
  /// Call it only if all state is on disk, or none of it. After an error no copy is under way.
  void copy_now(const nvme_swap::StoreOptions& options);
  /// Whether the next step commits the last one.
  [[nodiscard]] bool commits_next() const { return commits_.due_next(state_); }
  /// Whether an evaluation commits the last step. All ranks agree.
  [[nodiscard]] bool evaluation_commits() const {
    return commits_.due_to_evaluate(state_, decided_.update);
  }
  [[nodiscard]] Commits& commits() { return commits_; }
  [[nodiscard]] const Commits& commits() const { return commits_; }

 private:
  /// What has become of updates ahead; none: none was made, or they are the state's own.
  enum class Ahead : std::uint8_t { none, undecided, kept };

  void settle(Ahead made);
  [[nodiscard]] bool delays_updates() const { return engine_.workload().stale.delays_updates; }
  void begin_beside_update();
  [[nodiscard]] bool may_speculate() const;
  [[nodiscard]] Executor& list_of_step(Ahead leaves) const;
  void resume();
  void fill();
  void snapshot();
  void keep_stash();
  void prepare(Commit commit, Writes writes);
  void finish();
  void await_all_ranks();
  [[nodiscard]] const StepLists::OfStep& next() const { return lists_.after(state_.step); }

  StepEngine& engine_;
  TrainingState state_;
  const SavedRank saved_rank_;  // that commits name
  StepDecisions decided_;  ///< for the list that runs next, or runs; nobody else owns an update
  bool sound_ = true;
  Ahead ahead_ = Ahead::none;
  StepLists lists_;
  const Executor* last_step_;
  StateIo state_io_;
  Commits commits_;
  bool is_full_ = false;       // rounds in flight of a pipeline that stays full are in memory
  bool has_versions_ = false;  // and so are the versions of its weights
};

}  // namespace spillway::engine
