// The ways of the tensors between blocks and inside them: boundaries, and what backward needs.
#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/internals.hpp"
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

OpDraft Builder::copy_of_boundary(Lane lane, std::uint32_t layer, std::uint32_t m) const {
  OpDraft copy = draft(OpKind::copy, lane, layer, m);
  const bool disk = lane == Lane::nvme_read || lane == Lane::nvme_write;
  copy.op.bytes = disk ? boundary_disk_bytes(workload_) : workload_.boundary_bytes;
  return copy;
}

/// Brings back what was saved of a layer's output.
Buffer Builder::load_boundary(std::uint32_t layer, std::uint32_t m) {
  const Value value = activation(layer, m);
  Buffer host = of_micro_batch(PoolKind::host_boundaries, layer, m);
  if (boundary_home(workload_, placement_, layer) == Tier::nvme) {
    host = take_free(PoolKind::boundary_staging);
    OpDraft fetch = copy_of_boundary(Lane::nvme_read, layer, m);
    fetch.read(of_micro_batch(PoolKind::disk_boundaries, layer, m), value);
    fetch.write(host, value);
    append(fetch);
  }
  const Buffer device = take_free(PoolKind::boundary_slots);
  OpDraft load = copy_of_boundary(Lane::h2d, layer, m);
  load.read(host, value);
  load.write(device, value);
  append(load);
  give_back(host);
  return device;
}

void Builder::save_boundary(std::uint32_t layer, std::uint32_t m, const Buffer& made) {
  const Value value = activation(layer, m);
  const bool spills = boundary_home(workload_, placement_, layer) == Tier::nvme;
  const Buffer host = spills ? take_free(PoolKind::boundary_staging)
                             : of_micro_batch(PoolKind::host_boundaries, layer, m);
  OpDraft save = copy_of_boundary(Lane::d2h, layer, m);
  save.read(made, value);
  save.write(host, value);
  append(save);
  if (!spills) return;
  OpDraft spill = copy_of_boundary(Lane::nvme_write, layer, m);
  spill.read(host, value);
  spill.write(of_micro_batch(PoolKind::disk_boundaries, layer, m), value);
  append(spill);
  give_back(host);
}

/// Returns where the layer's output is for the next layer's forward.
Buffer Builder::passing_activation(std::uint32_t layer, std::uint32_t m) const {
  const bool stays = boundary_home(workload_, placement_, layer) == Tier::device;
  return stays ? of_micro_batch(PoolKind::boundaries, layer, m) : passing_[m];
}

/// Returns where the gradient of the layer's output is for its backward.
Buffer Builder::passing_gradient(std::uint32_t m) const {
  if (placement_.boundary_slots == 0) return {PoolKind::boundary_gradients, m};
  return passing_[m];
}

/// Returns where the layer's output is for the next layer's backward.
Buffer Builder::returning_activation(std::uint32_t layer, std::uint32_t m) {
  if (boundary_home(workload_, placement_, layer) == Tier::device) {
    return of_micro_batch(PoolKind::boundaries, layer, m);
  }
  return load_boundary(layer, m);
}

Buffer Builder::place_for_output(std::uint32_t layer, std::uint32_t m) {
  if (boundary_home(workload_, placement_, layer) == Tier::device) {
    return of_micro_batch(PoolKind::boundaries, layer, m);
  }
  return take_free(PoolKind::boundary_slots);
}

Buffer Builder::place_for_gradient(std::uint32_t m) {
  if (placement_.boundary_slots == 0) return {PoolKind::boundary_gradients, m};
  return take_free(PoolKind::boundary_slots);
}

void Builder::pass_activation(std::uint32_t layer, std::uint32_t m, const Buffer& made,
                              bool train) {
  if (made.pool != PoolKind::boundary_slots) return;
  if (train && boundary_home(workload_, placement_, layer)) save_boundary(layer, m, made);
  passing_[m] = made;
}

/// Takes a gradient to the backward of the layer whose output it is of.
void Builder::pass_gradient(std::uint32_t m, const Buffer& made) {
  if (made.pool == PoolKind::boundary_slots) passing_[m] = made;
}

Value Builder::saved(std::uint32_t layer, std::uint32_t m) const {
  const std::uint32_t first = workload_.first_block(layer);
  std::uint32_t part = last_part(layer);
  while (workload_.tiled && recomputes(layer) && !workload_.blocks[first + part].feeds_backward) {
    --part;
  }
  return made_by(ValueKind::saved, layer, part, m);
}

/// Returns the buffer of its own of what the block's layer saves, or the scratch.
Buffer Builder::kept_activations(std::uint32_t block, std::uint32_t m) const {
  const std::uint32_t first = workload_.first_block(workload_.layer_of(block));
  if (placement_.blocks[first].saved) return of_micro_batch(PoolKind::kept_activations, first, m);
  return {PoolKind::recomputation_scratch, workload_.tiled ? m : 0};
}

void Builder::save_activations(std::uint32_t block, std::uint32_t m, const Buffer& made) {
  OpDraft save = draft(OpKind::copy, Lane::d2h, block, m);
  save.op.bytes = workload_.blocks[block].saved_bytes;
  save.read(made, saved(block, m));
  save.write(of_micro_batch(PoolKind::host_kept_activations, block, m), saved(block, m));
  append(save);
  give_back(made);
}

/// Returns where backward finds what forward saved, or where it saves what it recomputes.
Buffer Builder::returning_activations(std::uint32_t block, std::uint32_t m) {
  if (!internals_leave(workload_, placement_, block)) return kept_activations(block, m);
  const Buffer slot = take_free(PoolKind::kept_activation_slots);
  OpDraft load = draft(OpKind::copy, Lane::h2d, block, m);
  load.op.bytes = workload_.blocks[block].saved_bytes;
  load.read(of_micro_batch(PoolKind::host_kept_activations, block, m), saved(block, m));
  load.write(slot, saved(block, m));
  append(load);
  return slot;
}

}  // namespace spillway::plan
