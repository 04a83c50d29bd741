#include "nvme_swap/tile_store.hpp"

#include <utility>

#include "nvme_swap/detail/store_files.hpp"
#include "nvme_swap/detail/store_implementation.hpp"

namespace spillway::nvme_swap {

TileStore::TileStore(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}
TileStore::~TileStore() = default;

std::unique_ptr<TileStore> TileStore::create(const StoreOptions& options,
                                             const StoreLayout& layout) {
  detail::check_options(options);
  detail::StoreFiles store = detail::create_files(options, layout);
  detail::use_cache(store.files, options.cache);
  auto implementation = std::make_unique<Implementation>(options, std::move(store));
  implementation->format(options);
  return std::unique_ptr<TileStore>(new TileStore(std::move(implementation)));
}

std::unique_ptr<TileStore> TileStore::open(const StoreOptions& options) {
  return std::unique_ptr<TileStore>(new TileStore(Implementation::open(options, std::nullopt)));
}

std::unique_ptr<TileStore> TileStore::open_at(const StoreOptions& options, StepIndex at) {
  return std::unique_ptr<TileStore>(new TileStore(Implementation::open(options, at)));
}

StoreContent TileStore::content(const StoreOptions& options) {
  detail::check_options(options);
  const auto path = swap_file_path(options.directories.front(), options.name, 0);
  if (!std::filesystem::exists(std::filesystem::symlink_status(path))) return StoreContent::nothing;
  return detail::content_of(detail::SwapFile::open_unlocked(path), options.owner);
}

void TileStore::remove_uncommitted(const StoreOptions& options) {
  if (content(options) == StoreContent::nothing) return;
  static_cast<void>(detail::empty_files(options));  // which go with their owner
}

void TileStore::go_back() { implementation_->go_back(); }

const StoreLayout& TileStore::layout() const { return implementation_->layout(); }
std::string_view TileStore::engine_name() const { return implementation_->engine_name(); }
EngineAbilities TileStore::engine_abilities() const { return implementation_->engine_abilities(); }
const std::optional<CommitHeader>& TileStore::committed() const {
  return implementation_->committed();
}
MappedTiles TileStore::map() const { return implementation_->map(); }
void TileStore::check_present() const { implementation_->check_present(); }
StoreCounters TileStore::counters() const { return implementation_->counters(); }

Ticket TileStore::read(TileIndex tile, std::span<std::byte> target) {
  return {*this, implementation_->read(tile, target)};
}
void TileStore::verify(TileIndex tile, std::span<const std::byte> data) const {
  implementation_->verify(tile, data);
}

void TileStore::verify(TileIndex tile, std::uint64_t checksum) const {
  implementation_->verify(tile, checksum);
}
Ticket TileStore::write(TileIndex tile, std::span<const std::byte> source, std::uint64_t checksum) {
  return {*this, implementation_->write(tile, source, checksum)};
}
void TileStore::discard(TileIndex tile) { implementation_->discard(tile); }
Ticket TileStore::commit(const CommitHeader& header) {
  return {*this, implementation_->commit(header)};
}
bool TileStore::ready(std::uint32_t slot) { return implementation_->ready(slot); }
void TileStore::finish(std::uint32_t slot) { implementation_->finish(slot); }

}  // namespace spillway::nvme_swap
