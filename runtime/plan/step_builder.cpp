#include "runtime/plan/step_builder.hpp"

#include "runtime/plan/detail/builder.hpp"
#include "runtime/plan/internals.hpp"
#include "runtime/plan/op_traffic.hpp"

namespace spillway::plan {
namespace detail {

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

void Builder::visit_forward(std::uint32_t block, MicroBatches range, bool train, bool again) {
  Op forward = block_op(OpKind::forward, Lane::gpu, block);
  const OpIndex available = acquire_parameters(block, forward.slot);
  forward.flops = workload_.blocks[block].forward_flops;
  forward.again = again;
  const bool leaves = activation_home(placement_, block) != BoundaryHome::device;
  const bool saves = train && internals_leave(workload_, placement_, block);
  OpIndex last = kNone;
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    forward.micro_batch = m;
    const Boundary input = is_embedding(block) ? Boundary{} : passing_activation(block - 1, m);
    SlotUsers before;
    if (leaves) before = take_slot(forward.boundary_slot);
    const OpIndex drained = saves ? take_saved_slot(forward.saved_slot) : kNone;
    forward.input_slot = input.slot;
    last = append(forward, {available, vectors_ready(), input.filled, before.computed, before.saved,
                            drained});
    release_slot(input.slot, last);
    if (saves) save_internals(block, m, forward.saved_slot, last);
    pass_activation(block, m, {forward.boundary_slot, last}, train);
  }
  release_parameters(forward.slot, last);
}

void Builder::forward_layer(std::uint32_t layer, MicroBatches range, bool train,
                            bool update_first) {
  const std::uint32_t end = workload_.first_block(layer + 1);
  for (std::uint32_t block = workload_.first_block(layer); block < end; ++block) {
    if (update_first) update_block(block);
    visit_forward(block, range, train);
  }
}

void Builder::visit_loss(std::uint32_t block, MicroBatches range, bool train) {
  const BlockShape& shape = workload_.blocks[block];
  Op loss = block_op(OpKind::loss, Lane::gpu, block);
  OpIndex tied = kNone;
  if (workload_.tied_head) tied = acquire_parameters(0, loss.tied_slot);
  const OpIndex available = acquire_parameters(block, loss.slot);
  OpIndex drained = kNone;
  if (train) {
    loss.gradient_slot = acquire_gradient(block, range.first);
    drained = gradient_reader_[loss.gradient_slot];
  }
  loss.flops = shape.forward_flops + (train ? shape.backward_flops : 0);
  OpIndex last = kNone;
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    loss.micro_batch = m;
    const Boundary input = passing_activation(block - 1, m);
    SlotUsers before;
    if (train && placement_.boundary_slots > 0) before = take_slot(loss.boundary_slot);
    loss.input_slot = input.slot;
    last =
        append(loss, {tied, available, vectors_ready(), drained, train ? vectors_drained() : kNone,
                      input.filled, before.computed, before.saved});
    release_slot(input.slot, last);
    pass_gradient(block - 1, m, {loss.boundary_slot, last});
  }
  release_parameters(loss.slot, last);
  release_parameters(loss.tied_slot, last);
  if (train && range.last == workload_.micro_batches) finish_gradient(block);
}

void Builder::visit_head(MicroBatches range, bool train) {
  const std::uint32_t first = workload_.first_block(workload_.layers() - 1);
  if (!workload_.tiled) return visit_loss(first, range, train);
  for (std::uint32_t block = first; block <= head(); ++block) visit_loss(block, range, false);
  for (std::uint32_t block = head() + 1; train && block-- > first;) visit_loss(block, range, true);
}

void Builder::visit_backward(std::uint32_t block, MicroBatches range) {
  const BlockShape& shape = workload_.blocks[block];
  Op backward = block_op(OpKind::backward, Lane::gpu, block);
  const bool embeds = is_embedding(block);
  // The embedding's backward scatters gradients and reads no parameters.
  const OpIndex available = embeds ? kNone : acquire_parameters(block, backward.slot);
  backward.gradient_slot = acquire_gradient(block, range.first);
  const OpIndex drained = gradient_reader_[backward.gradient_slot];
  const bool with_forward = !workload_.tiled && recomputes(block);
  backward.flops = shape.backward_flops + (with_forward ? shape.forward_flops : 0);
  OpIndex last = kNone;
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    backward.micro_batch = m;
    const OpIndex loaded = load_internals(block, m, backward.saved_slot);
    const Boundary input = embeds ? Boundary{} : returning_activation(block - 1, m);
    const Boundary gradient = passing_gradient(block, m);
    backward.input_slot = input.slot;
    backward.boundary_slot = gradient.slot;
    last = append(backward, {available, drained, embeds ? kNone : vectors_drained(), input.filled,
                             gradient.filled, loaded});
    release_slot(input.slot, last);
    release_saved_slot(backward.saved_slot, last);
    if (embeds) {
      release_slot(gradient.slot, last);
    } else {
      pass_gradient(block - 1, m, {gradient.slot, last});
    }
  }
  release_parameters(backward.slot, last);
  if (range.last == workload_.micro_batches) finish_gradient(block);
}

void Builder::backward_layer(std::uint32_t layer, MicroBatches range) {
  const std::uint32_t first = workload_.first_block(layer);
  const std::uint32_t end = workload_.first_block(layer + 1);
  if (workload_.tiled && recomputes(layer)) {
    for (std::uint32_t block = first; block < end; ++block) {
      if (workload_.blocks[block].feeds_backward) visit_forward(block, range, true, true);
    }
  }
  for (std::uint32_t block = end; block-- > first;) visit_backward(block, range);
}

void Builder::append_norms(std::uint32_t block, Lane lane, OpIndex landed) {
  if (round_ + 1 != workload_.rounds) return;
  for (std::uint32_t tile = first_tile_[block]; tile < first_tile_[block + 1]; ++tile) {
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
  const bool sums_here = gradient_on_device(workload_, placement_, block);
  if (sums_here) gradient_reader_[slot] = rounded;
  if (placement_.blocks[block].state == Tier::device) {
    append_norms(block, Lane::gpu, rounded);
    return;
  }
  if (sums_here && round_ + 1 != workload_.rounds) return;
  Op download = block_op(OpKind::download_grads, Lane::d2h, block);
  download.bytes = compute_bytes(block);
  if (sums_here) {
    download.bytes = Bytes{workload_.blocks[block].padded_parameters.value() * sizeof(float)};
    append_norms(block, Lane::cpu, append(download, {rounded}));
    return;
  }
  download.gradient_slot = slot;
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
  const std::uint32_t last = workload_.layers() - 1;
  if (workload_.tiled && update_first) update_block(0);
  for (std::uint32_t layer = 0; layer < last; ++layer) {
    forward_layer(layer, range, true, update_first);
  }
  if (update_first) {
    for (std::uint32_t block = workload_.first_block(last); block <= head(); ++block) {
      update_block(block);
    }
    append_step_commit();
  }
  visit_head(range, true);
  for (std::uint32_t layer = last; layer-- > 0;) backward_layer(layer, range);
  if (workload_.tiled && range.last == workload_.micro_batches) finish_gradient(0);
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
  // In the order of training, whose pools it uses.
  const bool whole = placement_.order == WorkOrder::layer_major;
  const std::uint32_t at_once = whole ? workload_.micro_batches : 1;
  for (std::uint32_t m = 0; m < workload_.micro_batches; m += at_once) {
    const MicroBatches range{m, m + at_once};
    for (std::uint32_t layer = 0; layer + 1 < workload_.layers(); ++layer) {
      forward_layer(layer, range, false, false);
    }
    visit_head(range, false);
  }
}

}  // namespace detail

using detail::Builder;

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
