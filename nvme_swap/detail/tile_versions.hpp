// TileVersions: which slot of every tile holds what. No I/O. Control thread, except `checksum` of a
// tile that no operation is pending on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nvme_swap/format.hpp"
#include "runtime/base/units.hpp"

namespace spillway::nvme_swap::detail {

class TileVersions {
 public:
  TileVersions(std::size_t tiles, std::uint32_t slots);

  /// Makes the slots of a recovered record both committed and newest.
  void recover(std::span<const TileRecord> records);

  /// Slot of the newest version; `kNoSlot` if the tile has none finished.
  [[nodiscard]] std::uint32_t newest(TileIndex tile) const { return state(tile).newest; }
  /// Checksum of the newest version.
  [[nodiscard]] std::uint64_t checksum(TileIndex tile) const;

  /// Returns the slot that a write takes now, by the rule in tile_store.hpp; nothing if it must
  /// wait for the commit in progress or for a read to end.
  [[nodiscard]] std::optional<std::uint32_t> choose_slot(TileIndex tile) const;

  [[nodiscard]] bool write_pending(TileIndex tile) const { return state(tile).write_pending; }
  [[nodiscard]] bool any_write_pending() const { return writes_pending_ > 0; }
  /// Notes the write from the request on; the slot may be chosen later.
  void announce_write(TileIndex tile);
  /// Takes `slot` for the announced write. An overwritten newest version is gone from here on.
  void begin_write(TileIndex tile, std::uint32_t slot);
  void finish_write(TileIndex tile, std::uint32_t slot, std::uint64_t checksum);
  void fail_write(TileIndex tile);

  void begin_read(TileIndex tile, std::uint32_t slot) { ++readers_[index(tile, slot)]; }
  void end_read(TileIndex tile, std::uint32_t slot) { --readers_[index(tile, slot)]; }
  [[nodiscard]] bool read_pending(TileIndex tile) const;

  /// A tile whose last write failed, if there is one.
  [[nodiscard]] std::optional<TileIndex> failed_tile() const;
  void discard(TileIndex tile);

  /// Fixes the newest versions as those of the commit that begins, and writes them to `records`.
  void begin_commit(std::span<TileRecord> records);
  void finish_commit();

 private:
  struct State {
    std::uint32_t newest = kNoSlot;
    std::uint32_t committed = kNoSlot;
    std::uint32_t committing = kNoSlot;
    bool write_pending = false;
    bool failed = false;
  };

  [[nodiscard]] const State& state(TileIndex tile) const { return states_[tile.value()]; }
  [[nodiscard]] State& state(TileIndex tile) { return states_[tile.value()]; }
  [[nodiscard]] std::size_t index(TileIndex tile, std::uint32_t slot) const {
    return std::size_t{tile.value()} * slots_ + slot;
  }
  void clear_failure(State& state);

  const std::uint32_t slots_;
  std::vector<State> states_;
  std::vector<std::uint64_t> checksums_;  // [tile][slot]
  std::vector<std::uint32_t> readers_;    // [tile][slot], reads pending
  std::size_t writes_pending_ = 0;
  std::size_t failed_tiles_ = 0;
};

}  // namespace spillway::nvme_swap::detail
