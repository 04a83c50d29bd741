#include <numeric>

#include "runtime/plan/detail/builder.hpp"
#include "runtime/plan/op_traffic.hpp"

namespace spillway::plan::detail {

void Builder::open_tiles() {
  first_tile_.assign(workload_.blocks.size() + 1, 0);
  for (const Tile& tile : tiles_) ++first_tile_[tile.block + 1];
  std::partial_sum(first_tile_.begin(), first_tile_.end(), first_tile_.begin());
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
  for (std::uint32_t tile = first_tile_[block]; tile < first_tile_[block + 1]; ++tile) {
    update_tile(tile);
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

void Builder::snapshot() {
  for (std::uint32_t tile = 0; tile < tiles_.size(); ++tile) {
    const bool on_disk = placement_.blocks[tiles_[tile].block].state == Tier::nvme;
    if (!on_disk) record_tile(tile, kNone);
  }
  append_commit();
}

}  // namespace spillway::plan::detail
