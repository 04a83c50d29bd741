#include "runtime/plan/step/builder/weights.hpp"

#include <utility>

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/step/op_traffic.hpp"

namespace spillway::plan {

void Weights::restart() {
  ahead_.assign(workload_.blocks.size(), {});
  secondary_.assign(workload_.blocks.size(), false);
  ahead_until_ = 1;  // the embedding's backward reads no parameters
}

void Weights::upload_parameters(std::uint32_t block, const Buffer& target, Needed needed) {
  OpDraft upload = draft(OpKind::copy, Lane::h2d, block);
  upload.op.if_pending = needed == Needed::after_update;
  upload.op.bytes = shard_bytes(block);
  if (age() > 0 && needed == Needed::always) {
    upload.read(stash_of(PoolKind::host_stash, block, step_.round), parameters(block));
    upload.write(target, parameters(block));
  } else {
    upload.read(tiles_of(PoolKind::host_parameters, block), shard_of(block));
    upload.write(target, shard_of(block));
  }
  append(upload);
}

Buffer Weights::bring_parameters(std::uint32_t block) {
  if (ahead_[block]) return *std::exchange(ahead_[block], std::nullopt);
  if (workload_.gathers()) return gather_for_pass(block);
  if (placement_.blocks[block].resident()) {
    if (workload_.shares_updates()) return {PoolKind::whole_parameters, block};
    if (age() > 0) return stash_of(PoolKind::stashed_parameters, block, step_.round);
    return tiles_of(PoolKind::resident_parameters, block);
  }
  const Buffer slot = take_free(PoolKind::parameter_slots);
  upload_parameters(block, slot, Needed::always);
  return slot;
}

void Weights::read_vectors(OpDraft& draft) const {
  if (!workload_.operator_tiles) return;
  draft.read(tiles_of(PoolKind::resident_parameters, 0), parameters(0));
}

void Weights::refresh_residents(std::uint32_t block) {
  const bool shares = workload_.shares_updates();
  const Buffer target = shares ? take_free(PoolKind::parameter_shards)
                               : tiles_of(PoolKind::resident_parameters, block);
  upload_parameters(block, target, Needed::after_update);
  if (!shares) return;
  gather(block, target, {PoolKind::whole_parameters, block}, Needed::after_update);
  give_back(target);
}

void Weights::gather(std::uint32_t block, const Buffer& shard, const Buffer& whole, Needed needed) {
  OpDraft gather = draft(OpKind::all_gather, Lane::net, block);
  gather.op.if_pending = needed == Needed::after_update;
  gather.op.bytes = gather_traffic(workload_, block);
  gather.read(shard, shard_of(block));
  gather.write(whole, parameters(block));
  append(gather);
}

void Weights::keep_secondary(std::uint32_t block, const Buffer& whole) {
  OpDraft keep = draft(OpKind::copy, Lane::d2h, block);
  keep.op.bytes = secondary_bytes(block);
  keep.read(whole, parameters(block));
  keep.write({PoolKind::secondary_parameters, block}, secondary_of(block));
  append(keep);
  secondary_[block] = true;
}

Buffer Weights::gather_on_node(std::uint32_t block) {
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

Buffer Weights::gather_for_pass(std::uint32_t block) {
  if (secondary_[block]) return gather_on_node(block);
  const bool resident = placement_.blocks[block].resident();
  const Buffer shard = resident ? tiles_of(PoolKind::resident_parameters, block)
                                : take_free(PoolKind::parameter_shards);
  if (!resident) upload_parameters(block, shard, Needed::always);
  const Buffer slot = take_free(PoolKind::parameter_slots);
  gather(block, shard, slot, Needed::always);
  give_back(shard);
  if (step_.trains && workload_.keeps_secondary(block)) keep_secondary(block, slot);
  return slot;
}

/// Collectives run in the order of the list: behind the reduction of this block's gradient, the
/// gathers would wait for its passes.
void Weights::gather_ahead(std::uint32_t visited) {
  if (!workload_.gathers()) return;
  std::uint32_t slots = placement_.parameter_slots - 1;
  for (std::uint32_t block = visited; block-- > ahead_until_ && slots-- > 0;) {
    if (!ahead_[block]) ahead_[block] = gather_for_pass(block);
  }
}

void Weights::copy_frozen(std::uint32_t block, Lane lane, const Buffer& from, const Buffer& to) {
  const Bytes bytes = workload_.blocks[block].frozen_bytes;
  OpDraft copy = draft(OpKind::copy, lane, block);
  copy.op.bytes = lane == Lane::nvme_read ? in_pages(bytes) : bytes;
  copy.read(from, {ValueKind::frozen, block});
  copy.write(to, {ValueKind::frozen, block});
  append(copy);
}

Buffer Weights::bring_frozen(std::uint32_t block) {
  const bool on_disk = placement_.blocks[block].parameters == Tier::nvme;
  const Buffer host =
      on_disk ? take_free(PoolKind::frozen_staging) : Buffer{PoolKind::host_frozen, block};
  if (on_disk) copy_frozen(block, Lane::nvme_read, {PoolKind::disk_frozen, block}, host);
  const Buffer slot = take_free(PoolKind::frozen_slots);
  copy_frozen(block, Lane::h2d, host, slot);
  give_back(host);
  return slot;
}

}  // namespace spillway::plan
