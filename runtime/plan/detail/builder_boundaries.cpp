#include "runtime/plan/detail/builder.hpp"

namespace spillway::plan::detail {

void Builder::open_boundaries() {
  const bool uses_slots = placement_.boundary_slots > 0;
  // An op may hold two: what it reads and what it writes.
  SPILLWAY_ASSERT(!uses_slots || placement_.boundary_slots >= 2);
  SPILLWAY_ASSERT(uses_slots || blocks_with(placement_, BoundaryHome::device) == head());
  SPILLWAY_ASSERT(placement_.boundary_staging > 0 ||
                  blocks_with(placement_, BoundaryHome::nvme) == 0);
  for (std::uint32_t slot = 0; slot < boundary_users_.size(); ++slot) {
    free_boundary_slots_.push_back(slot);
  }
}

SlotUsers Builder::take_slot(std::uint32_t& slot) {
  SPILLWAY_ASSERT(!free_boundary_slots_.empty());
  slot = free_boundary_slots_.front();
  free_boundary_slots_.pop_front();
  return std::exchange(boundary_users_[slot], {});
}

void Builder::release_slot(std::uint32_t slot, OpIndex user) {
  if (slot == kNoSlot) return;
  boundary_users_[slot].computed = user;
  free_boundary_slots_.push_back(slot);
}

Op Builder::boundary_op(OpKind kind, Lane lane, std::uint32_t block, std::uint32_t m) const {
  Op op = block_op(kind, lane, block);
  op.micro_batch = m;
  const bool disk = lane == Lane::nvme_read || lane == Lane::nvme_write;
  op.bytes = disk ? boundary_disk_bytes(workload_) : workload_.boundary_bytes;
  return op;
}

/// The op after which the boundary may be read where it waits off the device.
OpIndex& Builder::home_of(std::uint32_t block, std::uint32_t m, bool gradient) {
  const bool parked = gradient || activation_home(placement_, block) == BoundaryHome::parking;
  return parked ? parked_[m] : saved_[block * workload_.micro_batches + m];
}

Boundary Builder::load_boundary(std::uint32_t block, std::uint32_t m, bool gradient) {
  Op load = boundary_op(OpKind::load_activation, Lane::h2d, block, m);
  load.of_gradient = gradient;
  OpIndex there = home_of(block, m, gradient);
  if (!gradient && activation_home(placement_, block) == BoundaryHome::nvme) {
    Op fetch = boundary_op(OpKind::fetch_activation, Lane::nvme_read, block, m);
    fetch.slot = load.slot = boundary_staging_visits_++ % placement_.boundary_staging;
    there = append(fetch, {there, boundary_staging_user_[fetch.slot]});
  }
  const SlotUsers before = take_slot(load.boundary_slot);
  const OpIndex loaded = append(load, {there, before.computed, before.saved});
  if (load.slot != kNoSlot) boundary_staging_user_[load.slot] = loaded;
  return {load.boundary_slot, loaded};
}

/// A home is written again only when the op that read it last is long over: what is saved was
/// computed after that op on the same lane.
void Builder::save_boundary(std::uint32_t block, std::uint32_t m, bool gradient,
                            const Boundary& made) {
  Op save = boundary_op(OpKind::save_activation, Lane::d2h, block, m);
  save.of_gradient = gradient;
  save.boundary_slot = made.slot;
  const bool spills = !gradient && activation_home(placement_, block) == BoundaryHome::nvme;
  OpIndex staged = kNone;
  if (spills) {
    save.slot = boundary_staging_visits_++ % placement_.boundary_staging;
    staged = boundary_staging_user_[save.slot];
  }
  OpIndex there = append(save, {made.filled, staged});
  boundary_users_[made.slot].saved = there;
  if (spills) {
    Op spill = boundary_op(OpKind::spill_activation, Lane::nvme_write, block, m);
    spill.slot = save.slot;
    there = boundary_staging_user_[save.slot] = append(spill, {there});
  }
  home_of(block, m, gradient) = there;
}

/// The activation of `block` for the next block's forward.
Boundary Builder::passing_activation(std::uint32_t block, std::uint32_t m) {
  if (activation_home(placement_, block) == BoundaryHome::device) return {};
  if (is_parked(placement_, m)) return load_boundary(block, m, false);
  return {.slot = std::exchange(passing_[m], kNoSlot)};
}

/// The gradient of the boundary behind `block`, for its backward.
Boundary Builder::passing_gradient(std::uint32_t block, std::uint32_t m) {
  if (placement_.boundary_slots == 0) return {};
  if (is_parked(placement_, m)) return load_boundary(block, m, true);
  return {.slot = std::exchange(passing_[m], kNoSlot)};
}

/// The activation of `block` for the next block's backward.
Boundary Builder::returning_activation(std::uint32_t block, std::uint32_t m) {
  if (activation_home(placement_, block) == BoundaryHome::device) return {};
  return load_boundary(block, m, false);
}

void Builder::pass_activation(std::uint32_t block, std::uint32_t m, const Boundary& made,
                              bool train) {
  if (made.slot == kNoSlot) return;
  const bool parked = is_parked(placement_, m);
  const bool returns = train && activation_home(placement_, block) != BoundaryHome::parking;
  if (parked || returns) save_boundary(block, m, false, made);
  if (parked) {
    release_slot(made.slot, made.filled);
  } else {
    passing_[m] = made.slot;
  }
}

/// The gradient of the boundary behind `block`; that of the embedding's input leads nowhere.
void Builder::pass_gradient(std::uint32_t block, std::uint32_t m, const Boundary& made) {
  if (made.slot == kNoSlot) return;
  if (!is_parked(placement_, m)) {
    passing_[m] = made.slot;
    return;
  }
  save_boundary(block, m, true, made);
  release_slot(made.slot, made.filled);
}

}  // namespace spillway::plan::detail
