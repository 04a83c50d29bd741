// What the parts of OpActions share: what the ops work with, the plan that runs, what was decided
// for it, and counts of what has moved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu_adam/update.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "nvme_swap/tile_store.hpp"
#include "runtime/engine/device/device_math.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/state/state_slots.hpp"
#include "runtime/engine/step/external_framework.hpp"
#include "runtime/engine/step/op_memory.hpp"
#include "runtime/engine/step/update_setup.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::engine {

/// What the ops work with; all outlive the actions.
struct OpResources {
  const plan::Workload& workload;
  const plan::Placement& placement;
  Memory& memory;
  const StateSlots& slots;
  model::Transformer* transformer;  ///< null where no plan has passes of a model
  DeviceMath& device_math;
  cpu_adam::WorkerPool& workers;
  nvme_swap::TileStore* store;             ///< null where no plan reads or writes state there
  nvme_swap::TileStore* activation_store;  ///< null unless activations are placed on disk
  nvme_swap::TileStore* frozen_store;      ///< null unless what is frozen is placed there
  cpu_adam::Isa isa;
  const cpu_adam::Kernel& kernel;
  std::size_t update_prefetch;
  std::vector<BlockGroups> groups;  ///< by block
  ExternalFramework* framework;     ///< null where no plan has passes of another framework
  RankGroups& ranks;
};

/// Where a plan makes the last step true on disk.
struct DiskDecision {
  bool commits = false;  ///< in the state's own store
  /// A store with equal tiles that gets everything that the plan writes, and its commit; or null.
  /// The plan must write all tiles.
  nvme_swap::TileStore* copy = nullptr;
};

/// What a plan does beyond its ops, decided by whoever runs it. Nothing of it changes while the
/// plan runs.
struct StepDecisions {
  PendingUpdate update{};
  PendingUpdate ahead{};          ///< of the step that runs, as if nothing were clipped
  float loss_gradient_scale = 0;  ///< loss scale / targets of the step
  /// Set after each step and before the first: the next list stashes the current parameters for
  /// stale passes, even if no update is pending.
  bool stash_due = true;
  DiskDecision disk{};
  nvme_swap::CommitHeader commit{};  ///< of the last step
};

/// Bytes that copies of each sort have really moved.
class MovedBytes {
 public:
  void add(const plan::Copy& copied, std::size_t bytes) {
    moved_[index_of(copied)] += Bytes{bytes};
  }
  [[nodiscard]] Bytes of(const plan::Copy& copied) const { return moved_[index_of(copied)]; }

 private:
  [[nodiscard]] static std::size_t index_of(const plan::Copy& copied) {
    return (static_cast<std::size_t>(copied.what) * 3 + static_cast<std::size_t>(copied.from)) * 3 +
           static_cast<std::size_t>(copied.to);
  }

  std::array<Bytes, plan::kValueKindCount * 9> moved_{};  // by what and by the tiers
};

struct OpContext {
  OpResources resources;
  const StepDecisions* decisions;        ///< for the plan that runs
  const plan::StepPlan* plan = nullptr;  ///< whose ops are performed
  MovedBytes moved{};

  [[nodiscard]] OpMemory memory_of(const plan::Op& op) const {
    return {resources.memory, plan->accesses_of(op)};
  }
  /// Returns the bytes of a block's parameters, or of its gradient, in the compute dtype.
  [[nodiscard]] Bytes compute_bytes(std::uint32_t block) const {
    return Bytes{resources.workload.blocks[block].padded_parameters.value() *
                 size_of(resources.workload.compute)};
  }
  /// Returns the bytes of a block's gradient sums, in fp32.
  [[nodiscard]] Bytes sum_bytes(std::uint32_t block) const {
    return Bytes{resources.workload.blocks[block].padded_parameters.value() * sizeof(float)};
  }
  void count(const plan::Op& op, std::size_t bytes) { moved.add(op.copied, bytes); }
};

}  // namespace spillway::engine
