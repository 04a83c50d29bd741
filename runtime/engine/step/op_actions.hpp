// OpActions: what each op of a plan does to the memory that it declares. One function for
// each kind of op and processor; nothing here decides when. Control thread, except the bodies that
// it hands to streams and workers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "cpu_adam/update.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "nvme_swap/tile_store.hpp"
#include "runtime/engine/device/device_math.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/step/activation_tiles.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/engine/step/foreign_passes.hpp"
#include "runtime/engine/step/op_memory.hpp"
#include "runtime/engine/step/state_slots.hpp"
#include "runtime/engine/step/ticket_chains.hpp"
#include "runtime/engine/step/ticket_pairs.hpp"
#include "runtime/engine/step/tile_update.hpp"
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
  cpu_adam::Isa isa;
  const cpu_adam::Kernel& kernel;
  std::size_t update_prefetch;
  std::vector<BlockGroups> groups;  ///< by block
  ForeignPasses* passes;            ///< null where no plan has passes of another framework
  RankGroups& ranks;
};

class OpActions final : public OpPerformer {
 public:
  explicit OpActions(OpResources resources);

  /// Decisions of the control thread, set between plans.
  struct Step {
    PendingUpdate update;
    float loss_gradient_scale = 0;  ///< loss scale / targets of the step
    bool commit_due = false;
    /// Set after each step and before the first: the next list stashes the current parameters for
    /// stale passes, even if no update is pending.
    bool stash_due = true;
    /// A store with equal tiles that gets everything that this plan writes, and its commit; or
    /// null. The plan must write all tiles.
    nvme_swap::TileStore* copy = nullptr;
    nvme_swap::CommitHeader commit;
  };
  [[nodiscard]] Step& step() { return step_; }

  /// Forgets what the staging buffers held, because somebody else has used them.
  void forget_staged() { std::ranges::fill(held_, kNoTile); }

  void begin(const plan::StepPlan& plan) override { plan_ = &plan; }
  [[nodiscard]] bool skips(const plan::Op& op) const override;
  void enqueue(const plan::Op& op, offload::Stream& stream) override;
  [[nodiscard]] Ticket start(const plan::Op& op) override;

  /// Returns the bytes that copies of one sort have really moved since construction.
  [[nodiscard]] Bytes moved(const plan::Copy& copied) const { return moved_[index_of(copied)]; }

 private:
  [[nodiscard]] static std::size_t index_of(const plan::Copy& copied) {
    return (static_cast<std::size_t>(copied.what) * 3 + static_cast<std::size_t>(copied.from)) * 3 +
           static_cast<std::size_t>(copied.to);
  }
  void count(const plan::Op& op, std::size_t bytes) { moved_[index_of(op.copied)] += Bytes{bytes}; }
  [[nodiscard]] OpMemory memory_of(const plan::Op& op) const {
    return {resources_.memory, plan_->accesses_of(op)};
  }
  [[nodiscard]] offload::DeviceSpan<std::byte> tied_parameters(const plan::Op& op,
                                                               std::uint32_t block) const;
  [[nodiscard]] Bytes compute_bytes(std::uint32_t block) const {
    return Bytes{resources_.workload.blocks[block].padded_parameters.value() *
                 size_of(resources_.workload.compute)};
  }
  [[nodiscard]] Bytes sum_bytes(std::uint32_t block) const {
    return Bytes{resources_.workload.blocks[block].padded_parameters.value() * sizeof(float)};
  }
  /// Returns the state of an op's tile where the op reads it.
  [[nodiscard]] std::span<std::byte> state_of(const plan::Op& op) const;
  /// Returns the arguments that passes of all kinds share.
  template <class Arguments>
  [[nodiscard]] Arguments common_arguments(const plan::Op& op) const;
  [[nodiscard]] model::ForwardArguments forward_arguments(const plan::Op& op) const;

  [[nodiscard]] ExternalPass external_pass(const plan::Op& op) const;

  // Bodies; on the stream's side or on the workers.
  [[nodiscard]] bool normalizes(const plan::Op& op);
  void forward(const plan::Op& op);
  void backward(const plan::Op& op);
  void loss(const plan::Op& op);
  void loss_of_group(const plan::Op& op);
  void logits(const plan::Op& op);
  void round_gradient(const plan::Op& op);
  void device_norm(const plan::Op& op);
  void device_update(const plan::Op& op);
  void device_stash(const plan::Op& op);
  void host_stash(const plan::Op& op);
  void host_accumulate(const plan::Op& op);
  void host_norm(const plan::Op& op);
  void host_update(const plan::Op& op);
  void host_checksum(const plan::Op& op);

  /// Returns the range of an update, in place, of a tile whose arrays begin at these addresses.
  [[nodiscard]] cpu_adam::UpdateRange tile_range(std::uint32_t tile, std::byte* state,
                                                 const std::byte* gradient,
                                                 std::byte* parameters) const;
  using Groups = std::array<cpu_adam::ParameterGroup, std::tuple_size_v<BlockGroups>>;
  /// Returns the parts of a block with the scalars of their groups.
  [[nodiscard]] Groups groups_of(std::uint32_t block) const;
  /// Returns the 16-bit parameters of a tile's slot where an op to the disk finds them.
  [[nodiscard]] std::span<const std::byte> parameters_to_write(const plan::Op& op) const;
  [[nodiscard]] Ticket write_slot(const plan::Op& op, nvme_swap::TileStore& store,
                                  TicketPairs& pairs);
  [[nodiscard]] Ticket write(const plan::Op& op);
  [[nodiscard]] Ticket commit();
  /// What an op of many ranks reads and writes in the device's memory; a message has one buffer.
  struct Exchanged {
    std::span<const std::byte> source;
    std::span<std::byte> target;
    DType dtype;  ///< of sums
  };
  [[nodiscard]] Exchanged buffers_of(const plan::Op& op) const;
  [[nodiscard]] Exchanged buffers_of_replicas(const plan::Op& op) const;
  [[nodiscard]] Exchanged buffers_of_passes(const plan::Op& op) const;
  [[nodiscard]] Exchanged buffers_of_message(const plan::Op& op) const;
  [[nodiscard]] Exchanged shared_sums(const plan::Op& op) const;
  void upload_tokens(const plan::Op& op, offload::Stream& stream) const;
  void exchange(const plan::Op& op, offload::Stream& stream);
  [[nodiscard]] Ticket exchange(const plan::Op& op);
  void copy(const plan::Op& op, offload::Stream& stream);
  [[nodiscard]] Ticket copy(const plan::Op& op);
  void keep_secondary(const plan::Op& op, offload::Stream& stream);
  void stage_state(const plan::Op& op, offload::Stream& stream);
  [[nodiscard]] Ticket read_state(const plan::Op& op);
  [[nodiscard]] std::uint32_t staging_number(const plan::Buffer& staging) const;
  [[nodiscard]] Ticket spill(const plan::Op& op);
  [[nodiscard]] Ticket write_activations(const plan::Op& op);
  [[nodiscard]] Ticket fetch(const plan::Op& op);
  [[nodiscard]] Ticket verify_activations(const plan::Op& op);
  /// Returns nvme_swap::checksum_of `data`, computed by all workers. Inside a worker's task only.
  [[nodiscard]] std::uint64_t checksum(std::span<const std::byte> data);

  static constexpr std::uint32_t kNoTile = ~0U;

  /// The second half of an op that is one on the workers and one on the disk.
  struct SecondHalf {
    OpActions* actions = nullptr;
    const plan::Op* op = nullptr;
    Ticket operator()() const {
      const bool writes = op->copied.to == plan::Tier::nvme;
      return writes ? actions->write_activations(*op) : actions->verify_activations(*op);
    }
  };

  OpResources resources_;
  const plan::StepPlan* plan_ = nullptr;  ///< whose ops are performed
  const cpu_adam::Kernel& kernel_;
  UpdateTypes types_;
  Step step_;
  /// By tile, of what its next write to disk writes.
  std::vector<std::uint64_t> state_checksums_, parameter_checksums_;
  std::vector<std::uint64_t> piece_checksums_;  // of the checksum under way
  TileUpdate tile_update_;
  TicketPairs writes_, copy_writes_;  // by tile: its state and its parameters, to either store
  TicketPairs copies_;                // by tile, and one for the commit: to both stores
  const ActivationTiles activation_tiles_;
  // By staging buffer, of boundaries first:
  TicketChains<SecondHalf> activation_moves_;
  std::vector<std::uint64_t> activation_checksums_;
  std::vector<std::uint32_t> held_;  // by staging slot: the tile whose newest state lies in it
  std::array<Bytes, plan::kValueKindCount * 9> moved_{};  // by what and by the tiers
};

}  // namespace spillway::engine
