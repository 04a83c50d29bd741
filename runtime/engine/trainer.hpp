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
#include "runtime/engine/prepare/planning.hpp"
#include "runtime/engine/step/model_constants.hpp"
#include "runtime/engine/step/op_actions.hpp"
#include "runtime/engine/step/state_io.hpp"
#include "runtime/engine/training_state.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {

/// What one step did. `loss` is the mean over the step's targets before the update.
struct StepResult {
  std::uint64_t step = 0;  ///< from 1
  double loss = 0;
  double grad_norm = 0;      ///< unscaled, before clipping
  double lr = 0;             ///< of this step's update; it is applied unless `skipped`
  double scale = 1;          ///< loss scale of this step
  std::uint64_t tokens = 0;  ///< targets
  double seconds = 0;
  bool skipped = false;  ///< a gradient was not finite: state unchanged
  /// Why training cannot go on after this step; empty if it can.
  std::string diverged{};
};

struct Evaluation {
  double loss = 0;  ///< mean over targets
  std::uint64_t tokens = 0;
};

class Trainer {
 public:
  /// Allocates everything that the placement names. `options` are resolved. `update_prefetch`: the
  /// updates' software prefetch distance.
  Trainer(const model::ModelConfig& config, const config::TrainOptions& options,
          const plan::Placement& placement, const plan::Budgets& budgets, ModelRuntime model,
          plan::Workload workload, const nvme_swap::StoreOptions& store_options, bool resume,
          std::size_t update_prefetch = 0);
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
  [[nodiscard]] const plan::StepPlan& step_plan() const { return step_plan_; }
  /// Of a step that also writes what lives in memory.
  [[nodiscard]] std::size_t most_ops() const { return recorded_plan_.ops.size(); }
  /// Timings of the last step.
  [[nodiscard]] const Executor& step_executor() const { return *last_executor_; }
  [[nodiscard]] const OpActions& actions() const { return *actions_; }
  [[nodiscard]] offload::DeviceBackend& backend() const { return *backend_; }
  [[nodiscard]] const nvme_swap::TileStore& store() const { return *store_; }
  [[nodiscard]] const plan::Workload& workload() const { return workload_; }
  [[nodiscard]] const plan::Placement& placement() const { return placement_; }
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
  void prepare_plans();
  void fetch(const data::TokenFile& tokens, const data::Sampler& sampler);
  [[nodiscard]] std::span<double> host_losses() const;
  [[nodiscard]] data::MicroBatch host_batch(std::uint32_t round, std::uint32_t m) const;
  void run(Executor& executor);
  void flush(bool commit);
  void snapshot();
  void prepare_commit(bool due, bool writes_all);
  void finish_commit();
  void copy_committed();
  double reduce_loss();
  double reduce_norm();
  void decide(StepResult& result);
  void skip(StepResult& result);
  void check_tiles(const nvme_swap::StoreLayout& layout) const;
  void open_activation_store(const nvme_swap::StoreOptions& options);

  model::ModelConfig config_;
  config::TrainOptions options_;
  plan::Workload workload_;
  plan::Placement placement_;
  ModelRuntime model_;

  // Destroyed last: everything below may notify it.
  WakeSignal wake_;
  std::unique_ptr<offload::DeviceBackend> backend_;
  ModelConstants constants_;
  std::unique_ptr<DeviceMath> device_math_;
  StateSlots slots_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<nvme_swap::TileStore> store_;
  std::unique_ptr<nvme_swap::TileStore> copy_;              ///< see `copy_next`
  std::unique_ptr<nvme_swap::TileStore> activation_store_;  ///< of boundaries on disk, or null
  std::unique_ptr<cpu_adam::WorkerPool> workers_;
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<OpActions> actions_;
  std::unique_ptr<StateIo> state_io_;

  plan::StepPlan step_plan_, recorded_plan_, flush_plan_, evaluation_plan_, snapshot_plan_;
  std::unique_ptr<Executor> step_executor_, recorded_executor_, flush_executor_,
      evaluation_executor_, snapshot_executor_;
  const Executor* last_executor_ = nullptr;

  TrainingState state_;
  PendingUpdate pending_;
  std::optional<std::uint64_t> committed_step_;
  bool sound_ = true;
};

}  // namespace spillway::engine
