// What passes between ranks: parameters that were updated in parts, and gradients of the same block
// from other micro-batches. Every rank has the same list, so that all start the same collectives in
// the same order.
#include "runtime/plan/predict/op_traffic.hpp"
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

/// Makes a block's parameters whole from the shards of all ranks.
void Builder::gather(std::uint32_t block, const Buffer& shard, const Buffer& whole, Needed needed) {
  OpDraft gather = draft(OpKind::all_gather, Lane::net, block);
  gather.op.if_pending = needed == Needed::after_update;
  gather.op.bytes = gather_traffic(workload_, block);
  gather.read(shard, shard_of(block));
  gather.write(whole, parameters(block));
  append(gather);
}

/// Keeps this rank's part of what has been gathered for the next visits of the step.
void Builder::keep_secondary(std::uint32_t block, const Buffer& whole) {
  OpDraft keep = draft(OpKind::copy, Lane::d2h, block);
  keep.op.bytes = secondary_bytes(block);
  keep.read(whole, parameters(block));
  keep.write({PoolKind::secondary_parameters, block}, secondary_of(block));
  append(keep);
  secondary_[block] = true;
}

/// Makes a block's parameters whole from what the ranks of the node have kept.
Buffer Builder::gather_on_node(std::uint32_t block) {
  const Buffer part = take_free(PoolKind::parameter_shards);
  OpDraft upload = draft(OpKind::copy, Lane::h2d, block);
  upload.op.bytes = secondary_bytes(block);
  upload.read({PoolKind::secondary_parameters, block}, secondary_of(block));
  upload.write(part, secondary_of(block));
  append(upload);
  const Buffer slot = take_free(PoolKind::parameter_slots);
  OpDraft gather = draft(OpKind::all_gather, Lane::net, block);
  gather.op.group = RankGroup::node;
  gather.op.bytes = node_gather_traffic(workload_, block);
  gather.read(part, secondary_of(block));
  gather.write(slot, parameters(block));
  append(gather);
  give_back(part);
  return slot;
}

/// Returns a slot with the whole block, for the passes of one visit.
Buffer Builder::gather_for_pass(std::uint32_t block) {
  if (secondary_[block]) return gather_on_node(block);
  const bool resident = placement_.blocks[block].resident();
  const Buffer shard = resident ? tiles_of(PoolKind::resident_parameters, block)
                                : take_free(PoolKind::parameter_shards);
  if (!resident) upload_parameters(block, shard, Needed::always);
  const Buffer slot = take_free(PoolKind::parameter_slots);
  gather(block, shard, slot, Needed::always);
  give_back(shard);
  if (trains_ && workload_.keeps_secondary(block)) keep_secondary(block, slot);
  return slot;
}

/// Gathers the blocks that backward visits after this one, as many as there are slots beside its
/// own. Collectives run in the order of the list: behind the reduction of this block's gradient,
/// the gathers would wait for its passes.
void Builder::gather_ahead(std::uint32_t visited) {
  if (!workload_.gathers()) return;
  std::uint32_t slots = placement_.parameter_slots - 1;
  for (std::uint32_t block = visited; block-- > ahead_until_ && slots-- > 0;) {
    if (!ahead_[block]) ahead_[block] = gather_for_pass(block);
  }
}

/// Returns a buffer with what this rank gets of all ranks' gradients of a round: its shard of their
/// sum or, where they add up in a fixed order, its shard of each. What has no shards is whole.
Buffer Builder::reduce_gradient(std::uint32_t block, const Buffer& gradient) {
  const bool sharded = workload_.shards() > 1;
  const bool summed = workload_.ranks.sums == SumOrder::fast;
  const Value made{ValueKind::gradient, block, 0, round_};
  if (summed && !sharded) {
    OpDraft reduce = draft(OpKind::all_reduce, Lane::net, block);
    reduce.op.bytes = reduction_traffic(workload_, block);
    reduce.read(gradient, made);
    reduce.write(gradient, gradient_shard(block));
    append(reduce);
    return gradient;
  }
  const OpKind kind = summed    ? OpKind::reduce_scatter
                      : sharded ? OpKind::all_to_all
                                : OpKind::all_gather;
  const Buffer received = take_slot(PoolKind::gradient_shards, block);
  OpDraft exchange = draft(kind, Lane::net, block);
  exchange.op.bytes = reduction_traffic(workload_, block);
  exchange.read(gradient, made);
  exchange.write(received, gradient_shard(block));
  append(exchange);
  give_back(gradient);
  return received;
}

}  // namespace spillway::plan
