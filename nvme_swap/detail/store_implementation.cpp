#include "nvme_swap/detail/store_implementation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "nvme_swap/detail/store_recovery.hpp"
#include "nvme_swap/detail/throttled_engine.hpp"
#include "nvme_swap/detail/tile_checks.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::nvme_swap {
namespace {

std::vector<int> descriptors_of(const std::vector<detail::SwapFile>& files) {
  std::vector<int> descriptors;
  descriptors.reserve(files.size());
  for (const detail::SwapFile& file : files) descriptors.push_back(file.descriptor());
  return descriptors;
}

std::unique_ptr<IoEngine> engine_for(const StoreOptions& options, std::span<const int> files) {
  const EngineOptions engine_options{.files = files,
                                     .queue_depth = options.queue_depth,
                                     .wake = options.wake,
                                     .buffers = options.buffers,
                                     .uring = options.uring};
  auto engine = make_engine(options.engine, engine_options);
  if (options.disk_gigabytes_per_second) {
    engine = detail::make_throttled_engine(std::move(engine), engine_options,
                                           *options.disk_gigabytes_per_second);
  }
  if (options.adapt) engine = options.adapt(std::move(engine), engine_options);
  return engine;
}

}  // namespace

TileStore::Implementation::Implementation(const StoreOptions& options, detail::StoreFiles store)
    : map_(std::move(store.map)),
      files_(std::move(store.files)),
      descriptors_(descriptors_of(files_)),
      record_(map_.record_bytes),
      engine_(engine_for(options, descriptors_)),
      transfers_(*engine_, options.queue_depth, options.transfer_bytes.value(),
                 options.tickets + files_.size()),
      versions_(map_.tiles.size(), map_.slots),
      operations_(options.tickets),
      dirty_(files_.size()) {
  layout_.tiles.reserve(map_.tiles.size());
  for (const TileEntry& entry : map_.tiles) layout_.tiles.emplace_back(entry.bytes);
  for (std::size_t i = options.tickets; i > 0; --i) {
    free_operations_.push_back(static_cast<std::uint32_t>(i - 1));
  }
  deferred_.reserve(options.tickets);
  next_commit_.payload.reserve(kMaxCommitPayload);
  first_commit_.payload.reserve(kMaxCommitPayload);
}

TileStore::Implementation::~Implementation() {
  // A ticket that outlives its store would call into freed memory.
  SPILLWAY_ASSERT(free_operations_.size() == operations_.size());
}

void TileStore::Implementation::format(const StoreOptions& options) {
  versions_.begin_commit(record_table(map_, record_.bytes()));
  versions_.finish_commit();
  seal_record(map_, {}, record_.bytes());
  for (const std::uint64_t offset : map_.record_offset) {
    transfer_now(IoOperation::write, 0, offset, record_.bytes());
  }
  detail::AlignedBuffer header(map_.header_bytes);
  for (std::size_t i = files_.size(); i-- > 0;) {
    const auto file = static_cast<std::uint32_t>(i);
    // The header of the first file says that all is there, so the rest is made durable before it.
    if (i == 0) transfer_now(IoOperation::flush, file, 0, {});
    encode_header(map_, i, header.bytes());
    transfer_now(IoOperation::write, file, 0, header.bytes());
    transfer_now(IoOperation::flush, file, 0, {});
  }
  for (const std::filesystem::path& directory : options.directories) {
    detail::flush_directory(directory);
  }
  keep_files(!options.remove_on_close);
}

std::unique_ptr<TileStore::Implementation> TileStore::Implementation::open(
    const StoreOptions& options, std::optional<StepIndex> at) {
  detail::check_options(options);
  detail::StoreFiles store = detail::open_files(options);
  const detail::Recovered recovered = detail::recover(store.map, store.files.front(), at);
  detail::check_committed(recovered, store.files.front());
  if (!recovered.warning.empty()) log_line(LogLevel::warning, recovered.warning);
  detail::use_cache(store.files, options.cache);
  auto implementation = std::make_unique<Implementation>(options, std::move(store));
  implementation->recover(recovered);
  implementation->make_durable();
  implementation->keep_files(!options.remove_on_close);
  return implementation;
}

void TileStore::Implementation::go_back() {
  if (!is_older_) return;
  generation_ += 2;
  versions_.begin_commit(record_table(map_, record_.bytes()));
  versions_.finish_commit();
  seal_record(map_,
              {.generation = generation_,
               .committed = true,
               .step = committed_->step,
               .payload = committed_->payload},
              record_.bytes());
  area_ = 1 - area_;
  transfer_now(IoOperation::write, 0, map_.record_offset[area_], record_.bytes());
  transfer_now(IoOperation::flush, 0, 0, {});
  is_older_ = false;
}

void TileStore::Implementation::make_durable() {
  for (std::uint32_t file = 0; file < files_.size(); ++file) {
    transfer_now(IoOperation::flush, file, 0, {});
  }
}

void TileStore::Implementation::keep_files(bool keep) {
  for (detail::SwapFile& file : files_) file.set_remove_on_close(!keep);
}

void TileStore::Implementation::check_present() const {
  for (std::size_t i = 0; i < files_.size(); ++i) files_[i].check_present(map_.file_bytes[i]);
}

void TileStore::Implementation::recover(const detail::Recovered& recovered) {
  versions_.recover(recovered.tiles);
  committed_ = recovered.commit;
  is_older_ = recovered.is_older;
  generation_ = recovered.generation;
  area_ = recovered.area;
  if (committed_) committed_->payload.reserve(kMaxCommitPayload);
}

std::uint32_t TileStore::Implementation::take_operation(Kind kind) {
  if (free_operations_.empty()) {
    throw Error(ErrorCode::does_not_fit,
                fmt::format("all {} tickets of the tile store are pending; wait for one or raise "
                            "StoreOptions::tickets",
                            operations_.size()));
  }
  const std::uint32_t ticket = free_operations_.back();
  free_operations_.pop_back();
  operations_[ticket] = Operation{.kind = kind};
  return ticket;
}

void TileStore::Implementation::check_usable() const {
  SPILLWAY_ASSERT(!is_older_);
  if (map_.slots == 1 && (committed_ || commit_ticket_)) {
    throw Error(ErrorCode::not_supported,
                fmt::format("{} holds one version of every tile and is complete: it is read only; "
                            "start a new run from it",
                            files_.front().path().string()));
  }
  if (broken_) throw_failure(*broken_, "the store is closed to writes since its commit failed: ");
}

std::uint32_t TileStore::Implementation::read(TileIndex tile, std::span<std::byte> target) {
  detail::check_tile(map_, tile, target);
  const std::uint32_t slot = versions_.newest(tile);
  if (slot == kNoSlot) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tile {} has no version to read: none was written, or the only one is "
                            "being overwritten",
                            tile.value()));
  }
  const std::uint32_t ticket = take_operation(Kind::read);
  Operation& operation = operations_[ticket];
  operation.tile = tile;
  operation.slot = slot;
  operation.data = target.data();
  versions_.begin_read(tile, slot);
  start_slot_transfer(ticket, IoOperation::read);
  pump();
  return ticket;
}

std::uint32_t TileStore::Implementation::write(TileIndex tile, std::span<const std::byte> source,
                                               std::uint64_t checksum) {
  detail::check_tile(map_, tile, source);
  check_usable();
  if (versions_.write_pending(tile)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tile {} already has a write pending", tile.value()));
  }
  const std::uint32_t ticket = take_operation(Kind::write);
  Operation& operation = operations_[ticket];
  operation.tile = tile;
  // One field serves both directions; a write only reads from it.
  operation.data = const_cast<std::byte*>(source.data());
  operation.checksum = checksum;
  versions_.announce_write(tile);
  if (!try_start_write(ticket)) deferred_.push_back(ticket);
  pump();
  return ticket;
}

std::uint32_t TileStore::Implementation::commit(const CommitHeader& header) {
  pump();
  check_usable();
  check(header.payload.size() <= kMaxCommitPayload, ErrorCode::invalid_argument,
        "a commit's payload is longer than kMaxCommitPayload");
  check(!commit_ticket_, ErrorCode::invalid_argument, "a commit of the tile store is pending");
  check(!versions_.any_write_pending(), ErrorCode::invalid_argument,
        "a commit needs the writes before it to be finished");
  if (const auto tile = versions_.failed_tile()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the last write of tile {} failed; write it again or discard it before "
                            "a commit",
                            tile->value()));
  }
  const std::uint32_t ticket = take_operation(Kind::commit);
  next_commit_.step = header.step;
  next_commit_.payload.assign(header.payload.begin(), header.payload.end());
  versions_.begin_commit(record_table(map_, record_.bytes()));
  seal_record(map_,
              {.generation = generation_ + 1,
               .committed = true,
               .step = next_commit_.step,
               .payload = next_commit_.payload},
              record_.bytes());
  commit_ticket_ = ticket;
  start_stage(Stage::data_flush);
  advance_commit();
  pump();
  return ticket;
}

void TileStore::Implementation::verify(TileIndex tile, std::span<const std::byte> data) const {
  detail::check_tile(map_, tile, data);
  verify(tile, checksum_of(data));
}

void TileStore::Implementation::verify(TileIndex tile, std::uint64_t actual) const {
  if (tile.value() >= map_.tiles.size() || versions_.newest(tile) == kNoSlot) {
    throw Error(ErrorCode::invalid_argument, "a tile without a version cannot be verified");
  }
  const std::uint64_t expected = versions_.checksum(tile);
  if (expected == actual) return;
  detail::throw_damaged(map_, tile, {.checksum = expected, .slot = versions_.newest(tile)}, actual,
                        files_[map_.tiles[tile.value()].file].path());
}

void TileStore::Implementation::discard(TileIndex tile) {
  pump();
  check(tile.value() < map_.tiles.size(), ErrorCode::invalid_argument, "no such tile");
  check(!commit_ticket_ && !broken_ && !versions_.write_pending(tile) &&
            !versions_.read_pending(tile),
        ErrorCode::invalid_argument,
        "a tile cannot be discarded while a commit or an operation on it is pending");
  versions_.discard(tile);
}

MappedTiles TileStore::Implementation::map() const {
  check(map_.slots == 1, ErrorCode::not_supported,
        "the tiles of a store of several slots cannot be mapped: writes move them");
  std::vector<TilePlace> places;
  places.reserve(map_.tiles.size());
  for (const TileEntry& entry : map_.tiles) {
    places.push_back({.file = descriptors_[entry.file],
                      .offset = FileOffset{entry.offset},
                      .bytes = entry.bytes});
  }
  return MappedTiles(places);
}

bool TileStore::Implementation::ready(std::uint32_t slot) {
  SPILLWAY_ASSERT(slot < operations_.size() && operations_[slot].kind != Kind::free);
  if (!operations_[slot].over) pump();
  return operations_[slot].over;
}

void TileStore::Implementation::finish(std::uint32_t slot) {
  while (!ready(slot)) transfers_.wait();
  const std::optional<detail::IoFailure> failure = operations_[slot].failure;
  operations_[slot].kind = Kind::free;
  free_operations_.push_back(slot);
  if (failure) throw_failure(*failure, "");
}

void TileStore::Implementation::throw_failure(const detail::IoFailure& failure,
                                              std::string_view context) const {
  const auto found = std::find(descriptors_.begin(), descriptors_.end(), failure.file);
  const auto index = static_cast<std::size_t>(found - descriptors_.begin());
  const std::string reason =
      failure.error != 0
          ? fmt::format("{} (errno {})", std::strerror(failure.error), failure.error)
          : fmt::format("no byte moved in {} attempts", detail::TransferQueue::kMaxStalls);
  const std::string_view closed = engine_->failure();
  throw Error(
      ErrorCode::io_error,
      fmt::format("{}{} of {} bytes at offset {} of {}: {}{}{}", context,
                  name_of(failure.operation), failure.length, failure.offset.value(),
                  files_.at(index).path().string(), reason, closed.empty() ? "" : "; ", closed),
      failure.error);
}

}  // namespace spillway::nvme_swap
