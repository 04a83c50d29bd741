// Builder: the state of building one step plan. Its sides stand apart: builder_state.cpp has
// the way of optimizer state between its home, the update and the disk; builder_boundaries.cpp that
// of the tensors between blocks; builder_internals.cpp that of those inside blocks;
// step_builder.cpp the rest.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/boundaries.hpp"
#include "runtime/plan/placement.hpp"
#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan::detail {

inline constexpr OpIndex kNone = ~0U;

/// Half-open range of micro-batches that one visit of a block works through.
struct MicroBatches {
  std::uint32_t first;
  std::uint32_t last;
};

/// A boundary on the device.
struct Boundary {
  std::uint32_t slot = kNoSlot;  ///< kNoSlot: it has a device home of its own
  OpIndex filled = kNone;        ///< the op that brought or computed it, if it matters
};

/// The last ops that touch a device slot of boundaries.
struct SlotUsers {
  OpIndex computed = kNone;
  OpIndex saved = kNone;
};

class Builder {
 public:
  /// `records`: state that lives in memory goes to disk after its update.
  Builder(const Workload& workload, const Placement& placement, bool records = false)
      : workload_(workload),
        placement_(placement),
        records_(records),
        tiles_(make_tiles(workload, placement.tile_parameters)),
        ready_(workload.blocks.size(), kNone),
        last_update_(workload.blocks.size(), kNone),
        parameter_user_(placement.parameter_slots, kNone),
        gradient_reader_(placement.gradient_slots + 1, kNone),
        landing_reader_(placement.gradient_slots + 1, kNone),
        gradient_slot_(workload.blocks.size(), kNoSlot),
        staging_user_(placement.state_slots, kNone),
        staging_record_(placement.state_slots, kNone),
        staging_tile_(placement.state_slots, kNone),
        boundary_users_(device_boundary_slots(workload, placement)),
        boundary_staging_user_(placement.boundary_staging, kNone),
        passing_(workload.micro_batches, kNoSlot),
        parked_(workload.micro_batches, kNone),
        saved_(workload.blocks.size() * workload.micro_batches, kNone),
        saved_slot_user_(placement.saved_slots, kNone),
        internals_home_(workload.blocks.size() * workload.micro_batches, kNone) {
    SPILLWAY_ASSERT(placement.blocks.size() == workload.blocks.size());
    SPILLWAY_ASSERT(workload.blocks.size() >= 2 && placement.gradient_slots >= 1);
    const bool needs_pair =
        workload.tied_head && !placement.blocks[0].resident && !placement.blocks.back().resident;
    SPILLWAY_ASSERT(!placement.any_streamed() || placement.parameter_slots >= (needs_pair ? 2 : 1));
    SPILLWAY_ASSERT(placement.state_slots >= 1);
    for (const BlockPlacement& block : placement.blocks) {
      // The device updates parameters where they live.
      SPILLWAY_ASSERT(block.state != Tier::device || block.resident);
    }
    SPILLWAY_ASSERT(!workload.tiled ||
                    (placement.blocks[0].resident && placement.boundary_slots == 0));
    if (workload.tiled) gradient_slot_[0] = vectors_slot();
    open_tiles();
    open_boundaries();
    open_internals();
  }

  void flush();
  void training();
  void evaluation();
  void snapshot();
  StepPlan take() { return std::move(plan_); }

 private:
  OpIndex append(Op op, std::initializer_list<OpIndex> dependencies);
  Op block_op(OpKind kind, Lane lane, std::uint32_t block) const;
  Op tile_op(OpKind kind, Lane lane, std::uint32_t tile) const;

  void open_tiles();
  void update_tile(std::uint32_t tile);
  void record_tile(std::uint32_t tile, OpIndex updated);
  void read_ahead();
  void update_block(std::uint32_t block);
  void round(std::uint32_t round);
  OpIndex acquire_parameters(std::uint32_t block, std::uint32_t& slot);
  void release_parameters(std::uint32_t slot, OpIndex user);
  std::uint32_t acquire_gradient(std::uint32_t block, std::uint32_t first_micro_batch);

  void open_boundaries();
  /// The slot that has been free for longest, and what its next content has to wait for.
  SlotUsers take_slot(std::uint32_t& slot);
  void release_slot(std::uint32_t slot, OpIndex user);
  [[nodiscard]] Op boundary_op(OpKind kind, Lane lane, std::uint32_t block, std::uint32_t m) const;
  OpIndex& home_of(std::uint32_t block, std::uint32_t m, bool gradient);
  Boundary load_boundary(std::uint32_t block, std::uint32_t m, bool gradient);
  void save_boundary(std::uint32_t block, std::uint32_t m, bool gradient, const Boundary& made);
  Boundary passing_activation(std::uint32_t block, std::uint32_t m);
  Boundary passing_gradient(std::uint32_t block, std::uint32_t m);
  Boundary returning_activation(std::uint32_t block, std::uint32_t m);
  void pass_activation(std::uint32_t block, std::uint32_t m, const Boundary& made, bool train);
  void pass_gradient(std::uint32_t block, std::uint32_t m, const Boundary& made);

  void open_internals() const;
  [[nodiscard]] Op internals_op(OpKind kind, Lane lane, std::uint32_t block, std::uint32_t m) const;
  OpIndex take_saved_slot(std::uint32_t& slot);
  void save_internals(std::uint32_t block, std::uint32_t m, std::uint32_t slot, OpIndex computed);
  OpIndex load_internals(std::uint32_t block, std::uint32_t m, std::uint32_t& slot);
  void release_saved_slot(std::uint32_t slot, OpIndex user);

  void visit_forward(std::uint32_t block, MicroBatches range, bool train, bool again = false);
  void forward_layer(std::uint32_t layer, MicroBatches range, bool train, bool update_first);
  void visit_loss(std::uint32_t block, MicroBatches range, bool train);
  void visit_head(MicroBatches range, bool train);
  void visit_backward(std::uint32_t block, MicroBatches range);
  void backward_layer(std::uint32_t layer, MicroBatches range);
  void pass(MicroBatches range, bool update_first);
  void finish_gradient(std::uint32_t block);
  void append_norms(std::uint32_t block, Lane lane, OpIndex landed);
  void append_step_commit();
  void append_commit();

  [[nodiscard]] std::uint32_t head() const {
    return static_cast<std::uint32_t>(workload_.blocks.size() - 1);
  }
  // The vectors that all tiles read; kNone without tiles.
  [[nodiscard]] std::uint32_t vectors_slot() const { return placement_.gradient_slots; }
  [[nodiscard]] OpIndex vectors_ready() const { return workload_.tiled ? ready_[0] : kNone; }
  [[nodiscard]] OpIndex vectors_drained() const {
    return workload_.tiled ? gradient_reader_[vectors_slot()] : kNone;
  }
  [[nodiscard]] bool is_embedding(std::uint32_t block) const {
    return workload_.layer_of(block) == 0;
  }
  [[nodiscard]] bool recomputes(std::uint32_t layer) const {
    return layer > 0 && !placement_.blocks[workload_.first_block(layer)].keep;
  }
  [[nodiscard]] Bytes compute_bytes(std::uint32_t block) const {
    return Bytes{workload_.blocks[block].padded_parameters.value() * size_of(workload_.compute)};
  }

  const Workload& workload_;
  const Placement& placement_;
  const bool records_;
  StepPlan plan_;
  std::vector<Tile> tiles_;
  std::vector<std::uint32_t> first_tile_;  // block: its first tile; behind them the number of all
  std::vector<OpIndex> ready_;             // block: the op after which its home copy may be read
  std::vector<OpIndex> last_update_;       // block: its last update op
  std::vector<OpIndex> parameter_user_;    // slot: last op that reads it
  std::vector<OpIndex> gradient_reader_;   // slot: last op that reads it
  std::vector<OpIndex> landing_reader_;    // host landing slot: last op that reads it
  std::vector<std::uint32_t> gradient_slot_;  // block: slot of the visit under way
  std::vector<OpIndex> staging_user_;         // slot: last op that uses it
  // Slot: last write of a record from it, which happens also where updates are skipped.
  std::vector<OpIndex> staging_record_;
  std::vector<std::uint32_t> staging_tile_;        // slot: last tile in it
  std::vector<OpIndex> writes_;                    // since the last commit
  std::vector<SlotUsers> boundary_users_;          // slot: its last users
  std::deque<std::uint32_t> free_boundary_slots_;  // free for longest first
  std::vector<OpIndex> boundary_staging_user_;     // staging buffer: its last user
  std::vector<std::uint32_t> passing_;    // micro-batch: slot of the boundary that is carried on
  std::vector<OpIndex> parked_;           // micro-batch: the op that filled its place
  std::vector<OpIndex> saved_;            // block and micro-batch: the op that filled its home
  std::vector<OpIndex> saved_slot_user_;  // slot: last op that uses it
  std::vector<OpIndex> internals_home_;   // block and micro-batch: the op that filled it
  std::uint32_t parameter_visits_ = 0;
  std::uint32_t gradient_visits_ = 0;
  std::uint32_t staging_visits_ = 0;  // of tiles that live on disk: `read_ahead` counts on it
  std::uint32_t record_visits_ = 0;
  std::uint32_t boundary_staging_visits_ = 0;
  std::uint32_t saved_visits_ = 0;
  std::uint32_t round_ = 0;
};

}  // namespace spillway::plan::detail
