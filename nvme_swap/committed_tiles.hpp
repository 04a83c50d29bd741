// CommittedTiles: the newest commit of a store or the one before it, read without the store's lock,
// so that a run that uses the store neither waits nor is waited for. Changes nothing. One thread at
// a time.
//
// A run goes on while its commit is read. With two slots a tile is written over at the earliest
// when the next commit is durable, so a commit can be read whole for as long as a step takes, and
// often for longer. What was written over is told from what is damaged.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "nvme_swap/tile_store.hpp"
#include "runtime/base/units.hpp"

namespace spillway::nvme_swap {

enum class TileRead : std::uint8_t {
  whole,     ///< the tile is what the commit says
  moved_on,  ///< the store has committed again and may have written over the tile
};

class CommittedTiles {
 public:
  /// Takes directories, name, owner and cache of `options`. Throws `Error{corrupt_data}` for what
  /// `TileStore::open` refuses.
  explicit CommittedTiles(const StoreOptions& options);
  CommittedTiles(const CommittedTiles&) = delete;
  CommittedTiles& operator=(const CommittedTiles&) = delete;
  ~CommittedTiles();

  [[nodiscard]] const StoreLayout& layout() const;
  [[nodiscard]] const CommitHeader& commit() const;
  /// Number of commits made since the store was created.
  [[nodiscard]] std::uint64_t generation() const;
  [[nodiscard]] std::uint32_t slots() const;
  /// Whether the commit names a version of `tile`.
  [[nodiscard]] bool has(TileIndex tile) const;

  /// Reads `tile` as `commit()` left it into `target` (page aligned, the tile's size) and verifies
  /// it. After `moved_on` nothing of this commit can be counted on: take the newest one and begin
  /// again. Throws `Error{corrupt_data}` naming file and tile if the tile is damaged.
  [[nodiscard]] TileRead read(TileIndex tile, std::span<std::byte> target) const;
  /// Goes to the commit that is the newest now.
  void take_newest();
  /// Goes to the committed step `at`: the newest now, or the one before it, where each tile that is
  /// not whole counts as moved on. Throws `Error{corrupt_data}` if the store has neither.
  void take(StepIndex at);
  /// Whether the store has committed since this object took its commit.
  [[nodiscard]] bool has_moved_on() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::nvme_swap
