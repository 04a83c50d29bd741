#include "runtime/plan/step/builder/state_side.hpp"

#include "runtime/plan/step/op_traffic.hpp"

namespace spillway::plan {
namespace {

constexpr std::uint32_t kNoTile = ~0U;

Value state_of(std::uint32_t tile, std::uint16_t age) {
  return {.kind = ValueKind::state, .of = tile, .age = age};
}
Value state_after(std::uint32_t tile) { return state_of(tile, 0); }
std::uint16_t age_after(UpdateTime when) { return when == UpdateTime::ahead ? kAhead : 0; }
Value checksum_of(std::uint32_t tile, UpdateTime when) {
  return {.kind = ValueKind::checksum, .of = tile, .age = age_after(when)};
}

}  // namespace

void StateSide::restart() {
  staged_tile_.assign(placement_.state_slots, kNoTile);
  staging_visits_ = record_visits_ = 0;
}

/// Brings a tile from the disk to a staging buffer.
Buffer StateSide::stage_tile(std::uint32_t tile, UpdateTime when) {
  const Buffer state{PoolKind::state_staging, staging_visits_++ % placement_.state_slots};
  const bool ahead = when == UpdateTime::ahead;
  OpDraft read = draft_of_tile(OpKind::copy, Lane::nvme_read, tile);
  // What comes from the disk meets its 16-bit parameters in memory.
  read.op.bytes = state_bytes(placement_.format, step_.tiles[tile].count);
  read.op.held = !ahead && staged_tile_[state.first] == kNoTile;
  read.op.speculative = ahead;
  read.op.if_pending = !ahead;
  read.read({PoolKind::disk_state, tile}, state_of(tile, ahead ? 0 : 1));
  read.write(state, state_of(tile, ahead ? 0 : 1));
  append(read);
  staged_tile_[state.first] = tile;
  return state;
}

void StateSide::update_tile(std::uint32_t tile) {
  const Tier tier = placement_.blocks[step_.tiles[tile].block].state;
  const bool staged = tier == Tier::nvme;
  Buffer state{tier == Tier::device ? PoolKind::device_state : PoolKind::host_state, tile};
  if (staged) state = stage_tile(tile, UpdateTime::pending);
  append_update(tile, state, UpdateTime::pending);
  if (staged) {
    write_tile(tile, state, UpdateTime::pending);
  } else if (records_) {
    record_tile(tile);
  }
}

void StateSide::append_update(std::uint32_t tile, const Buffer& state, UpdateTime when) {
  const std::uint32_t block = step_.tiles[tile].block;
  const bool device = placement_.blocks[block].state == Tier::device;
  const bool ahead = when == UpdateTime::ahead;
  OpDraft update = draft_of_tile(OpKind::update, device ? Lane::gpu : Lane::cpu, tile);
  update.op.speculative = ahead;
  update.op.if_pending = !ahead;
  update.op.bytes = update_traffic(workload_, placement_, step_.tiles[tile]);
  const Buffer weights{device ? PoolKind::resident_parameters : PoolKind::host_parameters, tile};
  update.read({device ? PoolKind::device_gradients : PoolKind::host_gradients, tile},
              {ValueKind::total_gradient, block, 0, ahead ? step_.round : kLastStep});
  update.read(state, state_of(tile, ahead ? 0 : 1));
  update.write(state, state_of(tile, age_after(when)));
  update.write(weights, parameters_after(block, when));
  // The pass makes the checksums that a write of the tile needs.
  if (placement_.blocks[block].state == Tier::nvme) {
    const ElementCount count = step_.tiles[tile].count;
    update.op.checksummed =
        state_bytes(placement_.format, count) + slot_bytes(placement_.format, count);
    update.write({PoolKind::checksums, tile}, checksum_of(tile, when));
  }
  append(update);
}

Value StateSide::parameters_after(std::uint32_t block, UpdateTime when) const {
  Value parameters = shard_of(block);
  parameters.age = age_after(when);
  return parameters;
}

void StateSide::record_tile(std::uint32_t tile) {
  const std::uint32_t block = step_.tiles[tile].block;
  const bool device = placement_.blocks[block].state == Tier::device;
  Buffer state{PoolKind::host_state, tile};
  if (device) {
    state = {PoolKind::state_staging, record_visits_++ % placement_.state_slots};
    OpDraft read = draft_of_tile(OpKind::copy, Lane::d2h, tile);
    read.op.bytes = slot_bytes(placement_.format, step_.tiles[tile].count);
    read.read({PoolKind::device_state, tile}, state_after(tile));
    if (keeps_parameters_with_state()) {
      read.read({PoolKind::resident_parameters, tile}, shard_of(block));
    }
    read.write(state, state_after(tile));
    append(read);
    staged_tile_[state.first] = tile;
  }
  OpDraft sum = draft_of_tile(OpKind::checksum, Lane::cpu, tile);
  sum.op.bytes = slot_bytes(placement_.format, step_.tiles[tile].count);
  sum.read(state, state_after(tile));
  if (!device && keeps_parameters_with_state()) {
    sum.read({PoolKind::host_parameters, tile}, shard_of(block));
  }
  sum.write({PoolKind::checksums, tile}, checksum_of(tile, UpdateTime::pending));
  append(sum);
  write_tile(tile, state, UpdateTime::pending);
}

void StateSide::write_tile(std::uint32_t tile, const Buffer& state, UpdateTime when) {
  const std::uint32_t block = step_.tiles[tile].block;
  OpDraft write = draft_of_tile(OpKind::copy, Lane::nvme_write, tile);
  write.op.bytes = slot_bytes(placement_.format, step_.tiles[tile].count);
  write.op.speculative = when == UpdateTime::ahead;
  write.op.if_pending = when == UpdateTime::pending && placement_.blocks[block].state == Tier::nvme;
  write.read(state, state_of(tile, age_after(when)));
  if (keeps_parameters_with_state() && placement_.blocks[block].state != Tier::device) {
    write.read({PoolKind::host_parameters, tile}, parameters_after(block, when));
  }
  write.read({PoolKind::checksums, tile}, checksum_of(tile, when));
  write.write({PoolKind::disk_state, tile}, state_of(tile, age_after(when)));
  append(write);
}

/// The staging buffers are free once the last update is on its way to the disk: what the next step
/// reads first can come in while this one runs its backward. A buffer whose only tile is the one
/// that it starts with holds it anyway. Blocks that were updated ahead need no read, or, if that is
/// undone, another one.
void StateSide::read_ahead() {
  const std::uint32_t end = step_.first_tile[placement_.first_speculative()];
  std::uint32_t slot = 0;
  for (std::uint32_t tile = 0; tile < end && slot < placement_.state_slots; ++tile) {
    if (placement_.blocks[step_.tiles[tile].block].state != Tier::nvme) continue;
    if (staged_tile_[slot] != tile) {
      OpDraft read = draft_of_tile(OpKind::copy, Lane::nvme_read, tile);
      read.op.bytes = state_bytes(placement_.format, step_.tiles[tile].count);
      read.read({PoolKind::disk_state, tile}, state_after(tile));
      read.write({PoolKind::state_staging, slot}, state_after(tile));
      append(read);
    }
    ++slot;
  }
}

void StateSide::append_commit() {
  OpDraft commit = draft(OpKind::commit, Lane::nvme_write, 0);
  commit.read({PoolKind::disk_state, 0, static_cast<std::uint32_t>(step_.tiles.size())},
              state_after(0));
  append(commit);
}

/// With all state on disk, or on its way there, the step becomes true as soon as its last tile is
/// written.
void StateSide::append_step_commit() {
  if (placement_.all_state_on_disk() || records_) append_commit();
}

/// A block of another stage has no tiles.
void StateSide::update_block(std::uint32_t block) {
  if (step_.first_tile[block] == step_.first_tile[block + 1]) return;
  const bool done = finds_ahead_ && block >= placement_.first_speculative();
  for (std::uint32_t tile = step_.first_tile[block]; !done && tile < step_.first_tile[block + 1];
       ++tile) {
    update_tile(tile);
  }
  const BlockCut& cut = placement_.blocks[block];
  if (cut.resident() && cut.state != Tier::device) weights_.refresh_residents(block);
}

void StateSide::update_ahead(std::uint32_t block) {
  if (block < placement_.first_speculative()) return;
  for (std::uint32_t tile = step_.first_tile[block]; tile < step_.first_tile[block + 1]; ++tile) {
    const Buffer state = stage_tile(tile, UpdateTime::ahead);
    append_update(tile, state, UpdateTime::ahead);
    write_tile(tile, state, UpdateTime::ahead);
  }
}

void StateSide::stash_block(std::uint32_t block) {
  const std::uint32_t versions = workload_.stale.versions;
  if (versions == 0 || step_.first_tile[block] == step_.first_tile[block + 1]) return;
  const bool resident = placement_.blocks[block].resident();
  OpDraft stash = draft(OpKind::stash, resident ? Lane::gpu : Lane::cpu, block);
  stash.op.if_pending = true;
  stash.op.bytes = shard_bytes(block) * 2U;  // read and written
  const Value old = parameters(block, 1);
  const PoolKind kept = resident ? PoolKind::resident_parameters : PoolKind::host_parameters;
  const PoolKind stashed = resident ? PoolKind::stashed_parameters : PoolKind::host_stash;
  stash.read(tiles_of(kept, block), old);
  stash.write(stash_of(stashed, block, versions - 1), old);
  append(stash);
}

void StateSide::snapshot() {
  for (std::uint32_t tile = 0; tile < step_.tiles.size(); ++tile) {
    const bool on_disk = placement_.blocks[step_.tiles[tile].block].state == Tier::nvme;
    if (!on_disk) record_tile(tile);
  }
  append_commit();
}

}  // namespace spillway::plan
