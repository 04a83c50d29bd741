// The part of the tile store that makes progress: transfers, deferred writes, the commit's stages.
#include <utility>

#include "nvme_swap/detail/store_implementation.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap {

void TileStore::Implementation::start_transfer(std::uint32_t ticket, IoOperation operation,
                                               std::uint32_t file, std::uint64_t offset,
                                               std::span<std::byte> data) {
  transfers_.start({.operation = operation,
                    .file = descriptors_[file],
                    .offset = FileOffset{offset},
                    .data = data.data(),
                    .length = data.size(),
                    .owner = ticket});
}

void TileStore::Implementation::start_slot_transfer(std::uint32_t ticket, IoOperation kind) {
  const Operation& operation = operations_[ticket];
  const TileEntry& entry = map_.tiles[operation.tile.value()];
  start_transfer(ticket, kind, entry.file, map_.slot_offset(operation.tile, operation.slot),
                 {operation.data, entry.bytes});
}

/// For the headers of a new store, where waiting does no harm.
void TileStore::Implementation::transfer_now(IoOperation operation, std::uint32_t file,
                                             std::uint64_t offset, std::span<std::byte> data) {
  const std::uint32_t ticket = take_operation(Kind::plain);
  start_transfer(ticket, operation, file, offset, data);
  finish(ticket);
}

void TileStore::Implementation::pump() {
  for (bool progress = true; progress;) {
    progress = false;
    transfers_.pump();
    while (const auto outcome = transfers_.take_outcome()) {
      take_outcome(*outcome);
      progress = true;
    }
    if (progress && !deferred_.empty()) start_deferred();
  }
}

void TileStore::Implementation::take_outcome(const detail::JobOutcome& outcome) {
  Operation& operation = operations_[outcome.owner];
  if (operation.kind == Kind::commit) {
    --stage_jobs_;
    if (outcome.failure && !operation.failure) operation.failure = outcome.failure;
    advance_commit();
    return;
  }
  operation.over = true;
  operation.failure = outcome.failure;
  if (operation.kind == Kind::plain) return;
  const TileEntry& entry = map_.tiles[operation.tile.value()];
  if (operation.kind == Kind::read) {
    versions_.end_read(operation.tile, operation.slot);
    if (!outcome.failure) counters_.read += Bytes{entry.bytes};
    return;
  }
  dirty_[entry.file] = true;
  if (outcome.failure) {
    fail_write(operation, *outcome.failure);
  } else {
    versions_.finish_write(operation.tile, operation.slot, operation.checksum);
    counters_.written += Bytes{entry.bytes};
  }
}

void TileStore::Implementation::fail_write(Operation& operation, const detail::IoFailure& failure) {
  operation.over = true;
  operation.failure = failure;
  versions_.fail_write(operation.tile);
}

bool TileStore::Implementation::try_start_write(std::uint32_t ticket) {
  Operation& operation = operations_[ticket];
  if (broken_) {
    fail_write(operation, *broken_);
    return true;
  }
  const auto slot = versions_.choose_slot(operation.tile);
  if (!slot) return false;
  operation.slot = *slot;
  versions_.begin_write(operation.tile, *slot);
  start_slot_transfer(ticket, IoOperation::write);
  return true;
}

void TileStore::Implementation::start_deferred() {
  std::size_t kept = 0;
  for (const std::uint32_t ticket : deferred_) {
    if (!try_start_write(ticket)) deferred_[kept++] = ticket;
  }
  deferred_.resize(kept);
}

/// Each stage begins when all transfers of the one before it have succeeded: a record that names
/// versions is only written when those versions are durable.
void TileStore::Implementation::advance_commit() {
  while (commit_ticket_ && stage_jobs_ == 0) {
    const std::uint32_t ticket = *commit_ticket_;
    if (operations_[ticket].failure) {
      break_store(*operations_[ticket].failure);
      operations_[ticket].over = true;
      return;
    }
    const bool last = stage_ == (committed_ ? Stage::record_flush : Stage::twin_flush);
    if (last) return end_commit(ticket);
    start_stage(static_cast<Stage>(static_cast<std::uint8_t>(stage_) + 1));
  }
}

void TileStore::Implementation::start_stage(Stage stage) {
  stage_ = stage;
  const std::uint32_t ticket = *commit_ticket_;
  switch (stage) {
    case Stage::data_flush:
      for (std::uint32_t file = 0; file < files_.size(); ++file) {
        if (!dirty_[file]) continue;
        // Cleared before the flush: a write that ends while it runs is not covered by it.
        dirty_[file] = false;
        start_transfer(ticket, IoOperation::flush, file, 0, {});
        ++stage_jobs_;
      }
      return;
    case Stage::record_write:
    case Stage::twin_write: {
      const std::size_t area = stage == Stage::record_write ? 1 - area_ : area_;
      start_transfer(ticket, IoOperation::write, 0, map_.record_offset[area], record_.bytes());
      break;
    }
    case Stage::record_flush:
    case Stage::twin_flush: start_transfer(ticket, IoOperation::flush, 0, 0, {}); break;
  }
  ++stage_jobs_;
}

void TileStore::Implementation::end_commit(std::uint32_t ticket) {
  versions_.finish_commit();
  if (!committed_) committed_ = std::move(first_commit_);
  std::swap(*committed_, next_commit_);
  ++generation_;
  area_ = 1 - area_;
  ++counters_.commits;
  commit_ticket_.reset();
  operations_[ticket].over = true;
}

/// After a failed flush nobody knows which writes are durable, and after a failed record write
/// which record is: whatever is written next might destroy what recovery will find.
void TileStore::Implementation::break_store(const detail::IoFailure& failure) { broken_ = failure; }

}  // namespace spillway::nvme_swap
