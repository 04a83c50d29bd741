#include "runtime/plan/step_builder.hpp"

#include <initializer_list>

#include "runtime/base/error.hpp"
#include "runtime/plan/op_traffic.hpp"

namespace spillway::plan {
namespace {

constexpr OpIndex kNone = ~0U;

/// Half-open range of micro-batches that one visit of a block works through.
struct MicroBatches {
  std::uint32_t first;
  std::uint32_t last;
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
        gradient_reader_(placement.gradient_slots, kNone),
        landing_reader_(placement.gradient_slots, kNone),
        gradient_slot_(workload.blocks.size(), kNoSlot),
        staging_user_(placement.state_slots, kNone),
        staging_record_(placement.state_slots, kNone),
        staging_tile_(placement.state_slots, kNone) {
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

  void update_tile(std::uint32_t tile);
  void record_tile(std::uint32_t tile, OpIndex updated);
  void read_ahead();
  void update_block(std::uint32_t block);
  void round(std::uint32_t round);
  OpIndex acquire_parameters(std::uint32_t block, std::uint32_t& slot);
  void release_parameters(std::uint32_t slot, OpIndex user);
  std::uint32_t acquire_gradient(std::uint32_t block, std::uint32_t first_micro_batch);

  void visit_forward(std::uint32_t block, MicroBatches range);
  void visit_loss(MicroBatches range, bool train);
  void visit_backward(std::uint32_t block, MicroBatches range);
  void pass(MicroBatches range, bool update_first);
  void finish_gradient(std::uint32_t block);
  void append_norms(std::uint32_t block, Lane lane, OpIndex landed);
  void append_step_commit();
  void append_commit();

  [[nodiscard]] std::uint32_t head() const {
    return static_cast<std::uint32_t>(workload_.blocks.size() - 1);
  }
  [[nodiscard]] Bytes compute_bytes(std::uint32_t block) const {
    return Bytes{workload_.blocks[block].padded_parameters.value() * size_of(workload_.compute)};
  }

  const Workload& workload_;
  const Placement& placement_;
  const bool records_;
  StepPlan plan_;
  std::vector<Tile> tiles_;
  std::vector<OpIndex> ready_;                // block: the op after which its home copy may be read
  std::vector<OpIndex> last_update_;          // block: its last update op
  std::vector<OpIndex> parameter_user_;       // slot: last op that reads it
  std::vector<OpIndex> gradient_reader_;      // slot: last op that reads it
  std::vector<OpIndex> landing_reader_;       // host landing slot: last op that reads it
  std::vector<std::uint32_t> gradient_slot_;  // block: slot of the visit under way
  std::vector<OpIndex> staging_user_;         // slot: last op that uses it
  // Slot: last write of a record from it, which happens also where updates are skipped.
  std::vector<OpIndex> staging_record_;
  std::vector<std::uint32_t> staging_tile_;   // slot: last tile in it
  std::vector<OpIndex> writes_;               // since the last commit
  std::uint32_t parameter_visits_ = 0;
  std::uint32_t gradient_visits_ = 0;
  std::uint32_t staging_visits_ = 0;  // of tiles that live on disk: `read_ahead` counts on it
  std::uint32_t record_visits_ = 0;
  std::uint32_t round_ = 0;
};

OpIndex Builder::append(Op op, std::initializer_list<OpIndex> dependencies) {
  op.first_dependency = static_cast<std::uint32_t>(plan_.dependencies.size());
  for (const OpIndex dependency : dependencies) {
    if (dependency != kNone) plan_.dependencies.push_back(dependency);
  }
  op.dependency_count = static_cast<std::uint32_t>(plan_.dependencies.size()) - op.first_dependency;
  op.round = round_;
  plan_.ops.push_back(op);
  return static_cast<OpIndex>(plan_.ops.size() - 1);
}

Op Builder::block_op(OpKind kind, Lane lane, std::uint32_t block) const {
  Op op;
  op.kind = kind;
  op.lane = lane;
  op.block = block;
  return op;
}

Op Builder::tile_op(OpKind kind, Lane lane, std::uint32_t tile) const {
  Op op = block_op(kind, lane, tiles_[tile].block);
  op.tile = tile;
  // What comes from the disk meets its 16-bit parameters in memory; all else is a whole slot.
  if (kind == OpKind::read_state && lane == Lane::nvme_read) {
    op.bytes = state_bytes(placement_.format, tiles_[tile].count);
  } else if (kind == OpKind::read_state || kind == OpKind::write_state) {
    op.bytes = slot_bytes(placement_.format, tiles_[tile].count);
  }
  return op;
}

void Builder::update_tile(std::uint32_t tile) {
  const std::uint32_t block = tiles_[tile].block;
  const Tier home = placement_.blocks[block].state;
  Op update = tile_op(OpKind::update, home == Tier::device ? Lane::gpu : Lane::cpu, tile);
  update.if_pending = true;
  update.bytes = update_traffic(workload_, placement_, tiles_[tile]);
  if (home != Tier::nvme) {
    last_update_[block] = append(update, {});
    if (records_) record_tile(tile, last_update_[block]);
    return;
  }
  const std::uint32_t slot = staging_visits_++ % placement_.state_slots;
  const bool first_user = staging_tile_[slot] == kNone;
  staging_tile_[slot] = tile;
  Op read = tile_op(OpKind::read_state, Lane::nvme_read, tile);
  read.held = first_user;
  Op write = tile_op(OpKind::write_state, Lane::nvme_write, tile);
  read.slot = update.slot = write.slot = slot;
  read.if_pending = write.if_pending = true;
  const OpIndex filled = append(read, {staging_user_[slot], staging_record_[slot]});
  last_update_[block] = append(update, {filled});
  staging_user_[slot] = append(write, {last_update_[block]});
  writes_.push_back(staging_user_[slot]);
}

/// A tile that lives in memory to its spare slot on disk.
void Builder::record_tile(std::uint32_t tile, OpIndex updated) {
  Op sum = tile_op(OpKind::checksum, Lane::cpu, tile);
  Op write = tile_op(OpKind::write_state, Lane::nvme_write, tile);
  sum.bytes = write.bytes;
  OpIndex filled = updated;
  if (placement_.blocks[tiles_[tile].block].state == Tier::device) {
    Op read = tile_op(OpKind::read_state, Lane::d2h, tile);
    read.slot = sum.slot = write.slot = record_visits_++ % placement_.state_slots;
    filled = append(read, {updated, staging_user_[read.slot], staging_record_[read.slot]});
  }
  writes_.push_back(append(write, {append(sum, {filled})}));
  if (write.slot != kNoSlot) {
    staging_record_[write.slot] = writes_.back();
    staging_tile_[write.slot] = tile;
  }
}

/// The staging slots are free once the last update is on its way to the disk: what the next step
/// reads first can come in while this one runs its backward. A slot whose only tile is the one that
/// it starts with holds it anyway.
void Builder::read_ahead() {
  std::uint32_t slot = 0;
  for (std::uint32_t tile = 0; tile < tiles_.size() && slot < placement_.state_slots; ++tile) {
    if (placement_.blocks[tiles_[tile].block].state != Tier::nvme) continue;
    if (staging_tile_[slot] != tile) {
      Op read = tile_op(OpKind::read_state, Lane::nvme_read, tile);
      read.slot = slot;
      append(read, {staging_user_[slot], staging_record_[slot]});
    }
    ++slot;
  }
}

void Builder::append_commit() {
  Op commit = block_op(OpKind::commit, Lane::nvme_write, 0);
  const OpIndex index = append(commit, {});
  Op& placed = plan_.ops[index];
  plan_.dependencies.insert(plan_.dependencies.end(), writes_.begin(), writes_.end());
  placed.dependency_count = static_cast<std::uint32_t>(writes_.size());
  writes_.clear();
}

/// The previous step's update of a block, and its new parameters if they live on the device.
void Builder::update_block(std::uint32_t block) {
  for (std::uint32_t tile = 0; tile < tiles_.size(); ++tile) {
    if (tiles_[tile].block == block) update_tile(tile);
  }
  ready_[block] = last_update_[block];
  const BlockPlacement& place = placement_.blocks[block];
  if (place.resident && place.state != Tier::device) {
    Op refresh = block_op(OpKind::upload_params, Lane::h2d, block);
    refresh.if_pending = true;
    refresh.bytes = compute_bytes(block);
    ready_[block] = append(refresh, {last_update_[block]});
  }
}

/// With all state on disk, or on its way there, the step becomes true as soon as its last tile is
/// written.
void Builder::append_step_commit() {
  const bool all_on_disk = !placement_.any_state(Tier::device) && !placement_.any_state(Tier::host);
  if (all_on_disk || records_) append_commit();
}

void Builder::flush() {
  for (std::uint32_t block = 0; block <= head(); ++block) update_block(block);
  append_step_commit();
}

/// The op that makes the block's parameters readable on the device, and their slot.
OpIndex Builder::acquire_parameters(std::uint32_t block, std::uint32_t& slot) {
  slot = kNoSlot;
  if (placement_.blocks[block].resident) return ready_[block];
  slot = parameter_visits_++ % placement_.parameter_slots;
  Op upload = block_op(OpKind::upload_params, Lane::h2d, block);
  upload.slot = slot;
  upload.bytes = compute_bytes(block);
  return append(upload, {ready_[block], parameter_user_[slot]});
}

void Builder::release_parameters(std::uint32_t slot, OpIndex user) {
  if (slot != kNoSlot) parameter_user_[slot] = user;
}

std::uint32_t Builder::acquire_gradient(std::uint32_t block, std::uint32_t first_micro_batch) {
  if (first_micro_batch == 0) {
    gradient_slot_[block] = gradient_visits_++ % placement_.gradient_slots;
  }
  return gradient_slot_[block];
}

void Builder::visit_forward(std::uint32_t block, MicroBatches range) {
  Op forward = block_op(OpKind::forward, Lane::gpu, block);
  const OpIndex available = acquire_parameters(block, forward.slot);
  forward.flops = workload_.blocks[block].forward_flops;
  OpIndex last = kNone;
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    forward.micro_batch = m;
    last = append(forward, {available});
  }
  release_parameters(forward.slot, last);
}

void Builder::visit_loss(MicroBatches range, bool train) {
  const BlockShape& shape = workload_.blocks[head()];
  Op loss = block_op(OpKind::loss, Lane::gpu, head());
  OpIndex tied = kNone;
  if (workload_.tied_head) tied = acquire_parameters(0, loss.tied_slot);
  const OpIndex available = acquire_parameters(head(), loss.slot);
  OpIndex drained = kNone;
  if (train) {
    loss.gradient_slot = acquire_gradient(head(), range.first);
    drained = gradient_reader_[loss.gradient_slot];
  }
  loss.flops = shape.forward_flops + (train ? shape.backward_flops : 0);
  OpIndex last = kNone;
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    loss.micro_batch = m;
    last = append(loss, {tied, available, drained});
  }
  release_parameters(loss.slot, last);
  release_parameters(loss.tied_slot, last);
  if (train && range.last == workload_.micro_batches) finish_gradient(head());
}

void Builder::visit_backward(std::uint32_t block, MicroBatches range) {
  const BlockShape& shape = workload_.blocks[block];
  Op backward = block_op(OpKind::backward, Lane::gpu, block);
  // The embedding's backward scatters gradients and reads no parameters.
  const OpIndex available = block == 0 ? kNone : acquire_parameters(block, backward.slot);
  backward.gradient_slot = acquire_gradient(block, range.first);
  const OpIndex drained = gradient_reader_[backward.gradient_slot];
  const bool recomputes = block != 0 && !placement_.blocks[block].keep;
  backward.flops = shape.backward_flops + (recomputes ? shape.forward_flops : 0);
  OpIndex last = kNone;
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    backward.micro_batch = m;
    last = append(backward, {available, drained});
  }
  release_parameters(backward.slot, last);
  if (range.last == workload_.micro_batches) finish_gradient(block);
}

void Builder::append_norms(std::uint32_t block, Lane lane, OpIndex landed) {
  if (round_ + 1 != workload_.rounds) return;
  for (std::uint32_t tile = 0; tile < tiles_.size(); ++tile) {
    if (tiles_[tile].block != block) continue;
    Op norm = tile_op(OpKind::grad_norm, lane, tile);
    norm.bytes = norm_traffic(workload_, tiles_[tile]);
    append(norm, {landed});
  }
}

/// The round's gradient of a block is complete in its accumulator: round it and move it home.
void Builder::finish_gradient(std::uint32_t block) {
  const std::uint32_t slot = gradient_slot_[block];
  Op finish = block_op(OpKind::accumulate, Lane::gpu, block);
  finish.gradient_slot = slot;
  finish.bytes = rounding_traffic(workload_, placement_, block, round_);
  const OpIndex rounded = append(finish, {});
  if (placement_.blocks[block].state == Tier::device) {
    gradient_reader_[slot] = rounded;
    append_norms(block, Lane::gpu, rounded);
    return;
  }
  Op download = block_op(OpKind::download_grads, Lane::d2h, block);
  download.gradient_slot = slot;
  download.bytes = compute_bytes(block);
  OpIndex landed = append(download, {rounded, landing_reader_[slot]});
  gradient_reader_[slot] = landed;
  if (workload_.rounds > 1) {
    Op sum = block_op(OpKind::accumulate, Lane::cpu, block);
    sum.gradient_slot = slot;
    sum.bytes = summing_traffic(workload_, block, round_);
    landed = append(sum, {landed});
    landing_reader_[slot] = landed;
  }
  append_norms(block, Lane::cpu, landed);
}

/// One pass forward and backward. `update_first`: the pending update of each block stands just
/// ahead of the block's forward, so that on every lane it delays nothing that an earlier block
/// needs.
void Builder::pass(MicroBatches range, bool update_first) {
  for (std::uint32_t block = 0; block < head(); ++block) {
    if (update_first) update_block(block);
    visit_forward(block, range);
  }
  if (update_first) {
    update_block(head());
    append_step_commit();
  }
  visit_loss(range, true);
  for (std::uint32_t block = head(); block-- > 0;) visit_backward(block, range);
}

void Builder::round(std::uint32_t round) {
  round_ = round;
  if (placement_.order == WorkOrder::layer_major) {
    pass({0, workload_.micro_batches}, round == 0);
    return;
  }
  SPILLWAY_ASSERT(placement_.gradient_slots == workload_.blocks.size());
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    pass({m, m + 1}, round == 0 && m == 0);
  }
}

void Builder::training() {
  for (std::uint32_t r = 0; r < workload_.rounds; ++r) round(r);
  read_ahead();
}

void Builder::evaluation() {
  for (std::uint32_t block = 0; block < head(); ++block) {
    visit_forward(block, {0, workload_.micro_batches});
  }
  visit_loss({0, workload_.micro_batches}, false);
}

void Builder::snapshot() {
  for (std::uint32_t tile = 0; tile < tiles_.size(); ++tile) {
    const bool on_disk = placement_.blocks[tiles_[tile].block].state == Tier::nvme;
    if (!on_disk) record_tile(tile, kNone);
  }
  append_commit();
}

}  // namespace

StepPlan build_training_step(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.training();
  return builder.take();
}

StepPlan build_recorded_step(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement, true);
  builder.training();
  return builder.take();
}

StepPlan build_flush(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.flush();
  return builder.take();
}

StepPlan build_evaluation(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.evaluation();
  return builder.take();
}

StepPlan build_snapshot(const Workload& workload, const Placement& placement) {
  Builder builder(workload, placement);
  builder.snapshot();
  return builder.take();
}

}  // namespace spillway::plan
