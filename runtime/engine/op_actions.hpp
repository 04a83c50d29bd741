// OpActions: what each op of a plan does to the homes of a run. One function an op kind; nothing
// here decides when. Control thread, except the bodies that it hands to streams and workers.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "nvme_swap/tile_store.hpp"
#include "runtime/engine/device_math.hpp"
#include "runtime/engine/executor.hpp"
#include "runtime/engine/homes.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::engine {

/// What the ops work with; all outlive the actions.
struct OpResources {
  const plan::Workload& workload;
  const plan::Placement& placement;
  Homes& homes;
  model::Transformer& transformer;
  DeviceMath& device_math;
  cpu_adam::WorkerPool& workers;
  nvme_swap::TileStore& store;
  cpu_adam::Isa isa;
  /// Per block: parameters from its start that weight decay applies to.
  std::vector<std::uint64_t> decayed;
};

/// The scalars of the update that the next plan applies, if one is pending.
struct PendingUpdate {
  bool pending = false;
  cpu_adam::UpdateScalars decayed{};
  cpu_adam::UpdateScalars plain{};
};

class OpActions final : public OpPerformer {
 public:
  explicit OpActions(OpResources resources);

  /// Decisions of the control thread, set between plans.
  struct Step {
    bool training = false;  ///< a backward follows: kept activations are saved
    PendingUpdate update;
    float loss_gradient_scale = 0;  ///< loss scale / targets of the step
    bool commit_due = false;
    nvme_swap::CommitHeader commit;
  };
  [[nodiscard]] Step& step() { return step_; }

  [[nodiscard]] bool skips(const plan::Op& op) const override;
  void enqueue(const plan::Op& op, offload::Stream& stream) override;
  [[nodiscard]] Ticket start(const plan::Op& op) override;

  /// Bytes really moved since construction, by kind of op.
  [[nodiscard]] Bytes moved(plan::OpKind kind) const {
    return moved_[static_cast<std::size_t>(kind)];
  }

 private:
  void count(plan::OpKind kind, std::size_t bytes);
  [[nodiscard]] std::span<std::byte> state_of(const plan::Op& op);
  [[nodiscard]] offload::DeviceSpan<const std::byte> input_of(const plan::Op& op);
  [[nodiscard]] model::ForwardArguments forward_arguments(const plan::Op& op, bool save);

  // Bodies; on the stream's side or on the workers.
  void forward(const plan::Op& op);
  void backward(const plan::Op& op);
  void loss(const plan::Op& op);
  void round_gradient(const plan::Op& op);
  void device_norm(const plan::Op& op);
  void device_update(const plan::Op& op);
  void host_accumulate(const plan::Op& op);
  void host_norm(const plan::Op& op);
  void host_update(const plan::Op& op);

  /// The update range of a tile whose arrays start at the given addresses.
  [[nodiscard]] cpu_adam::UpdateRange tile_range(const plan::Tile& tile, const TileState& state,
                                                 const std::byte* block_gradient,
                                                 std::byte* block_parameters) const;
  /// Calls update(scalars, range) for the parts of [first, last) of `tile` that decay, or do not.
  template <class Update>
  void by_group(const plan::Tile& tile, const cpu_adam::UpdateRange& whole, std::size_t first,
                std::size_t last, const Update& update) const;

  OpResources resources_;
  const cpu_adam::Kernel& kernel_;
  DType gradient_dtype_;
  Step step_;
  std::vector<std::uint64_t> checksums_;  // by tile, of the newest state in its staging buffer
  std::array<Bytes, 16> moved_{};
};

}  // namespace spillway::engine
