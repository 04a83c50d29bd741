// StepEngine: everything that runs step plans, put together once: a device, its memory, workers,
// stores and the actions of ops. Training, inference and measurements differ in their plans alone.
// Control thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nvme_swap/tile_store.hpp"
#include "offload/memory.hpp"
#include "runtime/data/micro_batch.hpp"
#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/prepare/planned.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/state/state_slots.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/engine/step/memory.hpp"
#include "runtime/engine/step/op_actions.hpp"

namespace spillway::engine {

/// Whether the store of the state is made or was there before.
enum class Start : std::uint8_t { anew, resumed };

/// Where state is kept on disk, of what trains.
struct StateStore {
  nvme_swap::StoreOptions options{};  ///< without directories there is no store
  Start start = Start::anew;
  std::optional<StepIndex> resume_at{};  ///< of a store of many ranks; absent: the newest commit
};

/// Another framework that runs the passes, and the parameter groups by block, which no model gives
/// there.
struct ExternalModel {
  ExternalFramework& framework;  ///< outlives the engine
  std::vector<BlockGroups> groups;
  nvme_swap::StoreOptions frozen_store{};  ///< of what is frozen, where that is placed on disk
};

/// What an engine is made of: model and plan, and what only some engines have beside them.
struct EngineSetup {
  model::ModelConfig config;  ///< empty where another framework runs the passes
  Planned plan;
  StateStore store{};
  std::optional<ExternalModel> external{};  ///< absent: a model runs the passes
  std::size_t update_prefetch = 0;          ///< the updates' software prefetch distance
  SharedPools shared{};                     ///< pools in memory of several processes
  RankGroups* ranks = nullptr;              ///< outlives the engine; null: this rank is alone
};

class StepEngine {
 public:
  /// Allocates these pools, which are all that its plans need; absent: everything that the
  /// placement names. `model` outlives this object; it is empty where another framework runs the
  /// passes.
  StepEngine(EngineSetup setup, const ModelRuntime& model,
             std::optional<plan::Pools> pools = std::nullopt);
  StepEngine(const StepEngine&) = delete;
  StepEngine& operator=(const StepEngine&) = delete;
  ~StepEngine();

  [[nodiscard]] const model::ModelConfig& model_config() const { return setup_.config; }
  [[nodiscard]] const Planned& plan() const { return setup_.plan; }
  [[nodiscard]] const config::TrainOptions& options() const { return plan().options; }
  [[nodiscard]] const plan::Workload& workload() const { return plan().workload; }
  [[nodiscard]] const plan::Placement& placement() const { return plan().placement; }
  [[nodiscard]] cpu_adam::Isa isa() const { return cpu_adam::isa_or_best(options().isa); }
  [[nodiscard]] offload::DeviceBackend& backend() const { return *backend_; }
  /// Gives the backend away, which must still outlive this object. Nothing runs any more.
  [[nodiscard]] std::unique_ptr<offload::DeviceBackend> take_backend() {
    return std::move(backend_);
  }
  [[nodiscard]] Streams& streams() { return *streams_; }
  [[nodiscard]] RankGroups& ranks() const { return ranks_; }
  [[nodiscard]] const StateSlots& slots() const { return slots_; }
  [[nodiscard]] Memory& memory() { return *memory_; }
  [[nodiscard]] const Memory& memory() const { return *memory_; }
  /// Returns where the state is kept, and the store that is open there, or null.
  [[nodiscard]] const StateStore& state_store() const { return setup_.store; }
  [[nodiscard]] nvme_swap::TileStore* store() const { return store_.get(); }
  /// Returns the store of what is frozen of blocks, a tile a block (`frozen_tiles`), or null.
  [[nodiscard]] nvme_swap::TileStore* frozen_store() const { return frozen_store_.get(); }
  [[nodiscard]] OpActions& actions() const { return *actions_; }
  /// Returns where the tokens of a pass lie on the host.
  [[nodiscard]] data::MicroBatch batch(std::uint32_t pass) const;
  /// Returns the losses of all passes of the last plan. Blocks.
  [[nodiscard]] std::span<const double> losses();
  /// Returns the sums of squares of the leaves of a block's gradient, as the last plan left it.
  /// Blocks.
  [[nodiscard]] std::span<const double> norm_leaves(std::uint32_t block);
  /// Returns the signal that everything notifies when it completes.
  [[nodiscard]] WakeSignal& wake() { return wake_; }
  /// Returns the staging buffers of state, for work between lists: the ops of later lists rely on
  /// nothing that they held.
  [[nodiscard]] std::span<std::byte> borrow_staging() const;
  /// Makes a plan ready to run.
  [[nodiscard]] std::unique_ptr<Executor> prepare(plan::StepPlan plan) {
    return std::make_unique<Executor>(std::move(plan), *streams_, wake_);
  }

 private:
  void open_store();
  void open_activation_store();
  void open_frozen_store();

  EngineSetup setup_;
  RankGroups alone_;
  RankGroups& ranks_;
  // Destroyed last: everything below may notify it.
  WakeSignal wake_;
  std::unique_ptr<offload::DeviceBackend> backend_;
  std::unique_ptr<Streams> streams_;
  offload::DeviceMemory constants_;  ///< tables that the model's operators read
  std::unique_ptr<DeviceMath> device_math_;
  StateSlots slots_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<nvme_swap::TileStore> store_;             ///< or null
  std::unique_ptr<nvme_swap::TileStore> activation_store_;  ///< of saved tensors on disk, or null
  std::unique_ptr<nvme_swap::TileStore> frozen_store_;      ///< or null
  std::unique_ptr<cpu_adam::WorkerPool> workers_;
  std::unique_ptr<OpActions> actions_;
};

}  // namespace spillway::engine
