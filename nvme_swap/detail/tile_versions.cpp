#include "nvme_swap/detail/tile_versions.hpp"

#include "runtime/base/error.hpp"

namespace spillway::nvme_swap::detail {

TileVersions::TileVersions(std::size_t tiles, std::uint32_t slots)
    : slots_(slots), states_(tiles), checksums_(tiles * slots), readers_(tiles * slots) {}

void TileVersions::recover(std::span<const TileRecord> records) {
  SPILLWAY_ASSERT(records.size() == states_.size());
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    const TileRecord& record = records[i];
    states_[i].newest = record.slot;
    states_[i].committed = record.slot;
    if (record.slot != kNoSlot) checksums_[index(TileIndex{i}, record.slot)] = record.checksum;
  }
}

std::uint64_t TileVersions::checksum(TileIndex tile) const {
  SPILLWAY_ASSERT(newest(tile) != kNoSlot);
  return checksums_[index(tile, newest(tile))];
}

std::optional<std::uint32_t> TileVersions::choose_slot(TileIndex tile) const {
  const State& current = state(tile);
  bool spare_exists = false;
  for (std::uint32_t i = 0; i < slots_; ++i) {
    // Starts behind the newest slot, so that a tile that is written often uses all of them.
    const std::uint32_t slot = (current.newest == kNoSlot ? i : current.newest + 1 + i) % slots_;
    if (slot == current.newest || slot == current.committed || slot == current.committing) continue;
    if (readers_[index(tile, slot)] == 0) return slot;
    spare_exists = true;
  }
  const bool may_overwrite = !spare_exists && current.newest != kNoSlot &&
                             current.newest != current.committed &&
                             current.newest != current.committing;
  if (may_overwrite && readers_[index(tile, current.newest)] == 0) return current.newest;
  return std::nullopt;
}

void TileVersions::announce_write(TileIndex tile) {
  SPILLWAY_ASSERT(!state(tile).write_pending);
  state(tile).write_pending = true;
  ++writes_pending_;
}

void TileVersions::begin_write(TileIndex tile, std::uint32_t slot) {
  State& current = state(tile);
  SPILLWAY_ASSERT(slot != current.committed && slot != current.committing);
  if (slot == current.newest) current.newest = kNoSlot;
}

void TileVersions::finish_write(TileIndex tile, std::uint32_t slot, std::uint64_t checksum) {
  State& current = state(tile);
  checksums_[index(tile, slot)] = checksum;
  current.newest = slot;
  current.write_pending = false;
  --writes_pending_;
  clear_failure(current);
}

void TileVersions::fail_write(TileIndex tile) {
  State& current = state(tile);
  current.write_pending = false;
  --writes_pending_;
  if (!current.failed) ++failed_tiles_;
  current.failed = true;
}

bool TileVersions::read_pending(TileIndex tile) const {
  for (std::uint32_t slot = 0; slot < slots_; ++slot) {
    if (readers_[index(tile, slot)] > 0) return true;
  }
  return false;
}

std::optional<TileIndex> TileVersions::failed_tile() const {
  if (failed_tiles_ == 0) return std::nullopt;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i].failed) return TileIndex{i};
  }
  return std::nullopt;
}

void TileVersions::discard(TileIndex tile) {
  State& current = state(tile);
  SPILLWAY_ASSERT(current.committing == kNoSlot && !current.write_pending);
  current.newest = current.committed;
  clear_failure(current);
}

void TileVersions::begin_commit(std::span<TileRecord> records) {
  SPILLWAY_ASSERT(records.size() == states_.size());
  for (std::uint32_t i = 0; i < records.size(); ++i) {
    State& current = states_[i];
    current.committing = current.newest;
    records[i] = TileRecord{.slot = current.newest};
    if (current.newest != kNoSlot) records[i].checksum = checksum(TileIndex{i});
  }
}

void TileVersions::finish_commit() {
  for (State& current : states_) {
    current.committed = current.committing;
    current.committing = kNoSlot;
  }
}

void TileVersions::clear_failure(State& current) {
  if (current.failed) --failed_tiles_;
  current.failed = false;
}

}  // namespace spillway::nvme_swap::detail
