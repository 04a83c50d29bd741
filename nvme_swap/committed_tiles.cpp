#include "nvme_swap/committed_tiles.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "nvme_swap/detail/store_files.hpp"
#include "nvme_swap/detail/store_recovery.hpp"
#include "nvme_swap/detail/tile_checks.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap {

struct CommittedTiles::State {
  detail::StoreFiles store;
  StoreLayout layout{};
  detail::Recovered taken{};

  /// The newest commit that the record areas hold now, or that of step `at`.
  [[nodiscard]] detail::Recovered look(std::optional<StepIndex> at = std::nullopt) const {
    detail::Recovered found = detail::recover_in_use(store.map, store.files.front(), at);
    detail::check_committed(found, store.files.front());
    return found;
  }
};

CommittedTiles::CommittedTiles(const StoreOptions& options) {
  detail::check_options(options);
  state_ = std::make_unique<State>(State{.store = detail::open_files_unlocked(options)});
  for (const TileEntry& entry : state_->store.map.tiles) {
    state_->layout.tiles.emplace_back(entry.bytes);
  }
  detail::use_cache(state_->store.files, options.cache);
  take_newest();
}

CommittedTiles::~CommittedTiles() = default;

const StoreLayout& CommittedTiles::layout() const { return state_->layout; }
const CommitHeader& CommittedTiles::commit() const { return *state_->taken.commit; }
std::uint64_t CommittedTiles::generation() const { return state_->taken.generation; }
std::uint32_t CommittedTiles::slots() const { return state_->store.map.slots; }

bool CommittedTiles::has(TileIndex tile) const {
  return state_->taken.tiles.at(tile.value()).slot != kNoSlot;
}

TileRead CommittedTiles::read(TileIndex tile, std::span<std::byte> target) const {
  const StoreMap& map = state_->store.map;
  detail::check_tile(map, tile, target);
  const TileRecord& record = state_->taken.tiles[tile.value()];
  check(record.slot != kNoSlot, ErrorCode::invalid_argument,
        fmt::format("the commit names no version of tile {}", tile.value()));
  const detail::SwapFile& file = state_->store.files[map.tiles[tile.value()].file];
  const std::size_t bytes = file.read_at(map.slot_offset(tile, record.slot), target);
  const std::uint64_t actual = checksum_of(target.first(bytes));
  if (bytes == target.size() && actual == record.checksum) return TileRead::whole;
  // A slot is written over when a newer commit is durable, so that commit's record is there by now.
  if (state_->taken.is_older || has_moved_on()) return TileRead::moved_on;
  detail::throw_damaged(map, tile, record, actual, file.path());
}

void CommittedTiles::take_newest() { state_->taken = state_->look(); }

void CommittedTiles::take(StepIndex at) { state_->taken = state_->look(at); }

bool CommittedTiles::has_moved_on() const {
  const std::uint64_t newest = state_->taken.generation + (state_->taken.is_older ? 1 : 0);
  return state_->look().generation != newest;
}

}  // namespace spillway::nvme_swap
