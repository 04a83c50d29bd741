// Trainer: one training run in memory. Takes batches, runs the step plan, decides the update, and
// commits. It knows nothing of files other than the tile store; the loop around it does.
// Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "runtime/data/micro_batch.hpp"
#include "runtime/data/sampler.hpp"
#include "runtime/engine/evaluation.hpp"
#include "runtime/engine/step/state_io.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/step_result.hpp"
#include "runtime/engine/training_state.hpp"
#include "runtime/engine/update_decision.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {

class Trainer {
 public:
  /// Allocates everything that the placement names.
  Trainer(const EngineSetup& setup, ModelRuntime model);
  ~Trainer();

  /// Step 0: masters from `source`.
  void initialize(const model::ParameterSource& source);
  /// All state of the committed step of another run, whose tiles must be equal; commits it here.
  /// After `moved_on` the state is nobody's: adopt or initialize again.
  [[nodiscard]] nvme_swap::TileRead adopt(const nvme_swap::CommittedTiles& source);

  /// The state after a step that diverged is whole and can be committed; another step would diverge
  /// too.
  StepResult step(const data::TokenFile& tokens, const data::Sampler& sampler);
  /// Mean loss over all whole windows of `tokens`, in file order.
  Evaluation evaluate(const data::TokenFile& tokens);
  /// Applies the pending update and makes the current step true on disk, if the placement commits.
  void commit();
  /// Creates a store as `options` say and fills it with the state after the last step: by the
  /// writes that the next step makes anyway or, where it would not write everything, by reading the
  /// committed state again. The store is complete, committed and closed once `copying` is false.
  void copy_next(const nvme_swap::StoreOptions& options);
  [[nodiscard]] bool copying() const { return copy_ != nullptr; }
  /// The masters of one block after all updates; [padded] fp32.
  void read_masters(std::uint32_t block, std::span<float> masters);

  [[nodiscard]] const TrainingState& state() const { return state_; }
  [[nodiscard]] const plan::StepPlan& step_plan() const { return step_executor_->plan(); }
  /// Counts those of a step that also writes what lives in memory.
  [[nodiscard]] std::size_t most_ops() const { return recorded_executor_->plan().ops.size(); }
  /// Timings of the last step.
  [[nodiscard]] const Executor& step_executor() const { return *last_executor_; }
  [[nodiscard]] const OpActions& actions() const { return engine_.actions(); }
  [[nodiscard]] offload::DeviceBackend& backend() const { return engine_.backend(); }
  [[nodiscard]] const nvme_swap::TileStore& store() const { return engine_.store(); }
  [[nodiscard]] const plan::Workload& workload() const { return engine_.setup().workload; }
  [[nodiscard]] const plan::Placement& placement() const { return engine_.setup().placement; }
  [[nodiscard]] const model::ModelLayout& layout() const { return model_.transformer->layout(); }
  /// Commits happen inside the step plan: all state is on disk.
  [[nodiscard]] bool commits_in_step() const;
  /// The next `step` makes the one before it true on disk.
  [[nodiscard]] bool commits_next() const;
  /// An evaluation would: it completes the copy under way, which is never ahead of its run.
  [[nodiscard]] bool commits_to_evaluate() const;
  /// The last step that is true on disk, if there is one.
  [[nodiscard]] std::optional<std::uint64_t> committed_step() const { return committed_step_; }
  /// No operation has been cut off by an error: what is in memory can be committed.
  [[nodiscard]] bool is_sound() const { return sound_; }

 private:
  void fetch(const data::TokenFile& tokens, const data::Sampler& sampler);
  void run(Executor& executor);
  /// Whether the step becomes true on disk where the plan can make it so.
  enum class Commits : std::uint8_t { no, yes };
  /// Which tiles a plan writes, if an update is pending.
  enum class Writes : std::uint8_t { some, all };
  void flush(Commits commits);
  void snapshot();
  void prepare_commit(Commits commits, Writes writes);
  void finish_commit();
  void copy_committed();
  double reduce_norm();
  void check_tiles(const nvme_swap::StoreLayout& layout) const;
  [[nodiscard]] const config::TrainOptions& options() const { return engine_.setup().options; }
  [[nodiscard]] const StateSlots& slots() const { return engine_.slots(); }

  ModelRuntime model_;
  StepEngine engine_;
  std::unique_ptr<nvme_swap::TileStore> copy_;  ///< see `copy_next`
  StateIo state_io_;

  std::unique_ptr<Executor> step_executor_, recorded_executor_, flush_executor_,
      evaluation_executor_, snapshot_executor_;
  const Executor* last_executor_;

  TrainingState state_;
  PendingUpdate pending_;
  std::optional<std::uint64_t> committed_step_;
  bool sound_ = true;
};

}  // namespace spillway::engine
