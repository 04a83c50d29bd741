#include "runtime/plan/detail/builder.hpp"
#include "runtime/plan/internals.hpp"

namespace spillway::plan::detail {

void Builder::open_internals() const {
  for (const BlockPlacement& block : placement_.blocks) {
    SPILLWAY_ASSERT(!block.offload || (block.keep && !workload_.tiled));
  }
  // One to compute in or read from, and one that is copied meanwhile.
  SPILLWAY_ASSERT(placement_.saved_slots >= 2 ||
                  offloaded_internals(workload_, placement_) == Bytes{});
}

Op Builder::internals_op(OpKind kind, Lane lane, std::uint32_t block, std::uint32_t m) const {
  Op op = block_op(kind, lane, block);
  op.micro_batch = m;
  op.bytes = workload_.blocks[block].saved_bytes;
  return op;
}

/// The next slot in turn, and the op after which it is free.
OpIndex Builder::take_saved_slot(std::uint32_t& slot) {
  slot = saved_visits_++ % placement_.saved_slots;
  return saved_slot_user_[slot];
}

/// A home is written again only when the op that read it last is long over: what is saved was
/// computed after the backward that waited for that load, on the same lane.
void Builder::save_internals(std::uint32_t block, std::uint32_t m, std::uint32_t slot,
                             OpIndex computed) {
  Op save = internals_op(OpKind::save_internals, Lane::d2h, block, m);
  save.saved_slot = slot;
  const OpIndex there = append(save, {computed});
  saved_slot_user_[slot] = internals_home_[block * workload_.micro_batches + m] = there;
}

/// The op after which backward finds what forward saved, and the slot where; kNone if it stayed.
OpIndex Builder::load_internals(std::uint32_t block, std::uint32_t m, std::uint32_t& slot) {
  if (!internals_leave(workload_, placement_, block)) return kNone;
  Op load = internals_op(OpKind::load_internals, Lane::h2d, block, m);
  const OpIndex free = take_saved_slot(load.saved_slot);
  slot = load.saved_slot;
  return append(load, {internals_home_[block * workload_.micro_batches + m], free});
}

void Builder::release_saved_slot(std::uint32_t slot, OpIndex user) {
  if (slot != kNoSlot) saved_slot_user_[slot] = user;
}

}  // namespace spillway::plan::detail
