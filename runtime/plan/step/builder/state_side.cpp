#include "runtime/plan/step/builder/state_side.hpp"

#include "runtime/plan/step/op_traffic.hpp"

namespace spillway::plan {
namespace {

constexpr std::uint32_t kNoTile = ~0U;

Value state_before(std::uint32_t tile) { return {.kind = ValueKind::state, .of = tile, .age = 1}; }
Value state_after(std::uint32_t tile) { return {ValueKind::state, tile}; }
Value checksum_of(std::uint32_t tile) { return {ValueKind::checksum, tile}; }

}  // namespace

void StateSide::restart() {
  staged_tile_.assign(placement_.state_slots, kNoTile);
  staging_visits_ = record_visits_ = 0;
}

void StateSide::update_tile(std::uint32_t tile) {
  const std::uint32_t block = step_.tiles[tile].block;
  const Tier tier = placement_.blocks[block].state;
  const bool device = tier == Tier::device;
  const bool staged = tier == Tier::nvme;
  Buffer state{device ? PoolKind::device_state : PoolKind::host_state, tile};
  if (staged) {
    state = {PoolKind::state_staging, staging_visits_++ % placement_.state_slots};
    OpDraft read = draft_of_tile(OpKind::copy, Lane::nvme_read, tile);
    // What comes from the disk meets its 16-bit parameters in memory.
    read.op.bytes = state_bytes(placement_.format, step_.tiles[tile].count);
    read.op.held = staged_tile_[state.first] == kNoTile;
    read.op.if_pending = true;
    read.read({PoolKind::disk_state, tile}, state_before(tile));
    read.write(state, state_before(tile));
    append(read);
    staged_tile_[state.first] = tile;
  }
  OpDraft update = draft_of_tile(OpKind::update, device ? Lane::gpu : Lane::cpu, tile);
  update.op.if_pending = true;
  update.op.bytes = update_traffic(workload_, placement_, step_.tiles[tile]);
  const Buffer weights{device ? PoolKind::resident_parameters : PoolKind::host_parameters, tile};
  update.read({device ? PoolKind::device_gradients : PoolKind::host_gradients, tile},
              {ValueKind::total_gradient, block, 0, kLastStep});
  update.read(state, state_before(tile));
  update.write(state, state_after(tile));
  update.write(weights, shard_of(block));
  // The pass makes the checksums that a write of the tile needs.
  if (staged) update.write({PoolKind::checksums, tile}, checksum_of(tile));
  append(update);
  if (staged) {
    write_tile(tile, state);
  } else if (records_) {
    record_tile(tile);
  }
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
  sum.write({PoolKind::checksums, tile}, checksum_of(tile));
  append(sum);
  write_tile(tile, state);
}

void StateSide::write_tile(std::uint32_t tile, const Buffer& state) {
  const std::uint32_t block = step_.tiles[tile].block;
  OpDraft write = draft_of_tile(OpKind::copy, Lane::nvme_write, tile);
  write.op.bytes = slot_bytes(placement_.format, step_.tiles[tile].count);
  write.op.if_pending = placement_.blocks[block].state == Tier::nvme;
  write.read(state, state_after(tile));
  if (keeps_parameters_with_state() && placement_.blocks[block].state != Tier::device) {
    write.read({PoolKind::host_parameters, tile}, shard_of(block));
  }
  write.read({PoolKind::checksums, tile}, checksum_of(tile));
  write.write({PoolKind::disk_state, tile}, state_after(tile));
  append(write);
}

/// The staging buffers are free once the last update is on its way to the disk: what the next step
/// reads first can come in while this one runs its backward. A buffer whose only tile is the one
/// that it starts with holds it anyway.
void StateSide::read_ahead() {
  std::uint32_t slot = 0;
  for (std::uint32_t tile = 0; tile < step_.tiles.size() && slot < placement_.state_slots; ++tile) {
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
  for (std::uint32_t tile = step_.first_tile[block]; tile < step_.first_tile[block + 1]; ++tile) {
    update_tile(tile);
  }
  const BlockCut& cut = placement_.blocks[block];
  if (cut.resident() && cut.state != Tier::device) weights_.refresh_residents(block);
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
