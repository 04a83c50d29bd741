// Commits: what of a state in training is true on disk, and the decision what the next list makes
// true there: the last step, in the state's own store, in a copy of it, or in both. Control thread
// only, between lists.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/engine/state/training_state.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/training/state_io.hpp"
#include "runtime/engine/training/store_copy.hpp"

namespace spillway::engine {

/// Whether a list makes the last step true on disk, where it can.
enum class Commit : std::uint8_t { no, yes };
/// Which tiles a list writes, if an update is pending.
enum class Writes : std::uint8_t { some, all };
/// The ranks whose commits happen inside the step plan, because all their state is on disk.
enum class InStep : std::uint8_t { some, all };

class Commits {
 public:
  /// Returns which ranks of the job commit inside the step plan. All ranks call it.
  [[nodiscard]] static InStep ranks_in_step(StepEngine& engine);
  /// `engine` and `state_io` outlive this object.
  Commits(StepEngine& engine, StateIo& state_io, InStep ranks_in_step);

  /// Returns the last committed step, if there is one.
  [[nodiscard]] std::optional<std::uint64_t> committed_step() const { return committed_step_; }
  /// Whether commits happen inside the step plan, because all state is on disk.
  [[nodiscard]] bool in_step() const { return engine_.placement().all_state_on_disk(); }
  /// Creates a store as `options` say, on the run's I/O engine, and fills it with the state after
  /// the last step: by the writes that the next step makes anyway or, where it would not write
  /// everything, by reading the committed state again. What is on the disk is then read once more
  /// and compared. The store is whole and closed once `copied_step` is the step.
  void copy_next(const nvme_swap::StoreOptions& options) { copy_.begin(options); }
  [[nodiscard]] bool copying() const { return copy_.store() != nullptr; }
  /// Returns the step of the last copy, once every byte of it is known to be on the disk; nothing
  /// before the first, while one is under way, and after one that failed.
  [[nodiscard]] std::optional<std::uint64_t> copied_step() const { return copy_.step(); }

  // The rest is for whoever runs the lists. `state` and `update` are those of the last step.

  /// Whether the next step commits the last one.
  [[nodiscard]] bool due_next(const TrainingState& state) const;
  /// Whether an evaluation commits the last step: its flush completes the copy under way, which
  /// must not be ahead of the run's commit. All ranks agree.
  [[nodiscard]] bool due_to_evaluate(const TrainingState& state, const PendingUpdate& update) const;
  /// Returns the state that the store's commit records, whose tiles are to be read. Throws unless
  /// it is that of this rank, with the engine's tiles.
  [[nodiscard]] TrainingState resume();
  /// Returns where the next list makes the last step true; `writes`: by that list.
  [[nodiscard]] DiskDecision decide(const TrainingState& state, const PendingUpdate& update,
                                    Commit commit, Writes writes) const;
  /// Records what the list has made true.
  void finish(const TrainingState& state, const DiskDecision& made);
  /// Completes the copy under way, if there is one, from the committed tiles.
  void complete_copy();
  /// Completes the copy under way from the newest tiles, whatever is committed; `commit`: of the
  /// last step.
  void complete_copy_of_newest(const nvme_swap::CommitHeader& commit) { copy_.fill(commit); }
  /// Ends the copy under way after an error: later lists write nothing there.
  void abandon_copy() { copy_.abandon(); }

 private:
  StepEngine& engine_;
  StoreCopy copy_;
  const InStep ranks_in_step_;
  std::optional<std::uint64_t> committed_step_;
};

}  // namespace spillway::engine
