// StepCycle: what repeats around the plan of a training step, whoever runs the passes: the pending
// update that the next plan applies, commits, copies of committed steps, and state that is read or
// written between plans. It knows nothing of files other than the tile store. Control thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/step/state_io.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/step/training_state.hpp"
#include "runtime/engine/training/store_copy.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {

class StepCycle {
 public:
  /// Allocates everything that the placement names. `model` is empty where another framework runs
  /// the passes.
  StepCycle(const EngineSetup& setup, ModelRuntime model);

  /// Sets the state of step 0: masters from `source`, which has the blocks of the whole model also
  /// where this rank has a part of them.
  void initialize(const model::ParameterSource& source);
  /// Takes this rank's part of what another run of the same model has saved, with any number of
  /// ranks, in any stage, tier and format, and commits it here. All ranks adopt at once. After
  /// `Overtaken` the state is undefined: adopt or initialize again.
  void adopt(const SavedState& source);

  /// Applies the pending update and makes the current step true on disk, if the placement commits.
  void commit();
  /// Creates a store as `options` say, on the run's I/O engine, and fills it with the state after
  /// the last step: by the writes that the next step makes anyway or, where it would not write
  /// everything, by reading the committed state again. What is on the disk is then read once more
  /// and compared. The store is whole and closed once `copied_step` is the step.
  void copy_next(const nvme_swap::StoreOptions& options) { copy_.begin(options); }
  [[nodiscard]] bool copying() const { return copy_.store() != nullptr; }
  /// Returns the step of the last copy, once every byte of it is known to be on the disk; nothing
  /// before the first, while one is under way, and after one that failed.
  [[nodiscard]] std::optional<std::uint64_t> copied_step() const { return copy_.step(); }
  /// Reads the masters of one block after all updates; [padded] fp32.
  void read_masters(std::uint32_t block, std::span<float> masters);

  [[nodiscard]] const TrainingState& state() const { return state_; }
  [[nodiscard]] const plan::StepPlan& step_plan() const { return lists_.front().step->plan(); }
  /// Number of ops of a step that also writes what lives in memory.
  [[nodiscard]] std::size_t most_ops() const { return lists_.front().recorded->plan().ops.size(); }
  /// Returns the executor of the last step, with its timings.
  [[nodiscard]] const Executor& step_executor() const { return *last_executor_; }
  [[nodiscard]] const OpActions& actions() const { return engine_.actions(); }
  [[nodiscard]] offload::DeviceBackend& backend() const { return engine_.backend(); }
  [[nodiscard]] const plan::Workload& workload() const { return engine_.setup().workload; }
  [[nodiscard]] const plan::Placement& placement() const { return engine_.setup().placement; }
  /// Whether commits happen inside the step plan, because all state is on disk.
  [[nodiscard]] bool commits_in_step() const;
  /// Whether the next step commits the last one.
  [[nodiscard]] bool commits_next() const;
  /// Whether an evaluation commits the last step: its flush completes the copy under way, which
  /// must not be ahead of the run's commit. All ranks agree.
  [[nodiscard]] bool commits_to_evaluate() const;
  /// Returns the last committed step, if there is one.
  [[nodiscard]] std::optional<std::uint64_t> committed_step() const { return committed_step_; }
  /// Whether the state in memory can be committed: no error has interrupted an operation.
  [[nodiscard]] bool is_sound() const { return sound_; }

 protected:
  ~StepCycle() = default;

  /// Runs the plan of a step, and with it the pending update; then no update is pending.
  void run_step();
  /// Forgets the rounds in flight, whose memory another plan is about to use: the next step runs
  /// their passes again, with the same bits.
  void forget_rounds_in_flight() { is_full_ = false; }
  /// Creates a store as `options` say that holds the state after the last step, and commits it.
  /// Call it only if all state is on disk, or none of it. After an error no copy is under way.
  void copy_now(const nvme_swap::StoreOptions& options);
  /// Returns the sums of squares of the leaves of a block's gradient, as the last step left it.
  [[nodiscard]] std::span<const double> norm_leaves(std::uint32_t block);
  /// Whether the step becomes true on disk where the plan can make it so.
  enum class Commits : std::uint8_t { no, yes };
  /// Applies the pending update.
  void flush(Commits commits);
  void run(Executor& executor);
  /// Returns the executor that `run` has run last, with its timings; there must be one.
  [[nodiscard]] const Executor& last_run() const { return *last_run_; }
  [[nodiscard]] const config::TrainOptions& options() const { return engine_.setup().options; }
  [[nodiscard]] const StateSlots& slots() const { return engine_.slots(); }
  [[nodiscard]] RankGroups& ranks() { return engine_.ranks(); }
  [[nodiscard]] const ModelRuntime& model() const { return model_; }
  [[nodiscard]] StepEngine& engine() { return engine_; }
  [[nodiscard]] const StepEngine& engine() const { return engine_; }
  [[nodiscard]] StateIo& state_io() { return state_io_; }

  TrainingState state_;
  PendingUpdate pending_;
  bool sound_ = true;  ///< see `is_sound`

 private:
  /// Which tiles a plan writes, if an update is pending.
  enum class Writes : std::uint8_t { some, all };
  void snapshot();
  void prepare_commit(Commits commits, Writes writes);
  void finish_commit();
  void await_all_ranks();
  void copy_committed();
  void resume();

  ModelRuntime model_;  // outlives the engine
  StepEngine engine_;
  StateIo state_io_;
  StoreCopy copy_;  ///< see `copy_next`

  /// The lists of a step, where they take turns of one of the phases.
  struct Lists {
    std::unique_ptr<Executor> step, recorded, flush;
    std::unique_ptr<Executor> fill;  ///< of a pipeline that stays full; else null
  };
  [[nodiscard]] Lists& lists() { return lists_[state_.step % lists_.size()]; }
  void fill();

  std::vector<Lists> lists_;  // by phase
  std::unique_ptr<Executor> snapshot_executor_;
  bool is_full_ = false;             // rounds in flight of a pipeline that stays full are in memory
  bool has_versions_ = false;        // and so are the versions of its weights
  bool all_commit_in_step_ = false;  // see `commits_in_step`
  const Executor* last_executor_ = nullptr;
  const Executor* last_run_ = nullptr;

  std::optional<std::uint64_t> committed_step_;
};

}  // namespace spillway::engine
