#include "runtime/engine/state/state_slots.hpp"

#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::engine {

StateSlots::StateSlots(StateFormat format, std::vector<plan::Tile> tiles, std::size_t blocks)
    : format_(format), tiles_(std::move(tiles)), off_disk_(tiles_.size()) {
  layouts_.reserve(tiles_.size());
  for (std::uint32_t i = 0; i < tiles_.size(); ++i) {
    const plan::Tile& tile = tiles_[i];
    const auto& layout = layouts_.emplace_back(cpu_adam::make_layout(format, tile.count.value()));
    // The plan counts what the kernels lay out.
    SPILLWAY_ASSERT(layout.bytes == plan::state_bytes(format, tile.count).value());
    SPILLWAY_ASSERT(layout.disk_bytes == plan::slot_bytes(format, tile.count).value());
    while (first_tile_.size() <= tile.block) first_tile_.push_back(i);
  }
  first_tile_.resize(blocks + 1, static_cast<std::uint32_t>(tiles_.size()));
}

StateSlots::StateSlots(const plan::Workload& workload, const plan::Placement& placement,
                       std::uint32_t replica)
    : StateSlots(placement.format, plan::make_tiles(workload, placement.tile_parameters, replica),
                 workload.blocks.size()) {
  for (std::size_t i = 0; i < tiles_.size(); ++i) {
    const bool lives_there = placement.blocks[tiles_[i].block].state == plan::Tier::nvme;
    off_disk_[i] = !placement.commits && !lives_there;
  }
  if (!workload.stale.delays_updates || !placement.commits) return;
  for (const plan::Tile& tile : tiles_) {
    stash_bytes_.push_back(plan::stash_slot_bytes(workload, tile.count).value());
  }
}

nvme_swap::StoreLayout StateSlots::store_layout() const {
  nvme_swap::StoreLayout store;
  const auto add = [&](std::size_t tile, std::uint64_t bytes) {
    store.tiles.emplace_back(off_disk_[tile] ? kPageBytes : bytes);
  };
  for (std::size_t tile = 0; tile < layouts_.size(); ++tile) add(tile, layouts_[tile].bytes);
  for (std::size_t tile = 0; with_parameters() && tile < layouts_.size(); ++tile) {
    add(tile, layouts_[tile].disk_bytes - layouts_[tile].bytes);
  }
  for (const std::size_t bytes : stash_bytes_) store.tiles.emplace_back(bytes);
  return store;
}

std::span<std::byte> StateSlots::parameters_of(std::uint32_t tile,
                                               std::span<std::byte> slot) const {
  const cpu_adam::StateLayout& layout = layouts_[tile];
  return slot.subspan(layout.parameters, layout.disk_bytes - layout.parameters);
}

namespace {

void read_verified(nvme_swap::TileStore& store, TileIndex tile, std::span<std::byte> target) {
  store.read(tile, target).wait();
  store.verify(tile, target);
}

}  // namespace

void StateSlots::load_state(nvme_swap::TileStore& store, std::uint32_t tile,
                            std::span<std::byte> slot) const {
  read_verified(store, state(tile), state_of(tile, slot));
}

void StateSlots::load_parameters(nvme_swap::TileStore& store, std::uint32_t tile,
                                 std::span<std::byte> target) const {
  read_verified(store, parameters(tile), target);
}

void StateSlots::load_stash(nvme_swap::TileStore& store, std::uint32_t tile,
                            std::span<std::byte> stash) const {
  read_verified(store, stash_tile(tile), stash);
}

void StateSlots::save_stash(nvme_swap::TileStore& store, std::uint32_t tile,
                            std::span<const std::byte> stash) const {
  store.write(stash_tile(tile), stash, nvme_swap::checksum_of(stash)).wait();
}

void StateSlots::load(nvme_swap::TileStore& store, std::uint32_t tile,
                      std::span<std::byte> slot) const {
  load_state(store, tile, slot);
  if (with_parameters()) load_parameters(store, tile, parameters_of(tile, slot));
}

nvme_swap::TileRead StateSlots::load(const nvme_swap::CommittedTiles& tiles, std::uint32_t tile,
                                     std::span<std::byte> slot) const {
  const auto result = tiles.read(state(tile), state_of(tile, slot));
  if (result == nvme_swap::TileRead::moved_on || !with_parameters()) return result;
  return tiles.read(parameters(tile), parameters_of(tile, slot));
}

void StateSlots::save(nvme_swap::TileStore& store, std::uint32_t tile,
                      std::span<std::byte> slot) const {
  const auto write = [&](TileIndex index, std::span<const std::byte> bytes) {
    store.write(index, bytes, nvme_swap::checksum_of(bytes)).wait();
  };
  write(state(tile), state_of(tile, slot));
  if (with_parameters()) write(parameters(tile), parameters_of(tile, slot));
}

}  // namespace spillway::engine
