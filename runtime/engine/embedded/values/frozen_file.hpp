// FrozenFile: frozen tensors of units that live on disk, a tile a unit. They are written between
// plans alone. Outside of passes the framework finds them in a mapping of the files. No plan may
// run meanwhile, but for `of`, which any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nvme_swap/mapped_tiles.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/step/buffer_tiles.hpp"
#include "runtime/engine/step/step_engine.hpp"

namespace spillway::engine {

/// New bytes of a frozen tensor of a unit.
struct FrozenPiece {
  FrozenRange range;
  std::span<const std::byte> bytes;
};

class FrozenFile {
 public:
  /// Maps the engine's store of frozen tensors, if it has one. `engine` outlives this object.
  explicit FrozenFile(StepEngine& engine);

  [[nodiscard]] bool exists() const { return store_ != nullptr; }
  /// Returns where the framework finds a tensor of a unit: [bytes].
  [[nodiscard]] std::span<std::byte> of(const FrozenRange& range) const;
  /// Writes tensors. Those of one unit should come together: the unit is written once.
  void write(std::vector<FrozenPiece> pieces);
  /// Gives the mapping away.
  [[nodiscard]] nvme_swap::MappedTiles take_mapping() { return std::move(mapping_); }

 private:
  [[nodiscard]] TileIndex tile_of(std::uint32_t block) const;
  void write_unit(std::uint32_t block, std::span<const FrozenPiece> pieces);

  StepEngine& engine_;
  nvme_swap::TileStore* const store_;
  const BufferTiles tiles_;
  nvme_swap::MappedTiles mapping_;
  std::vector<bool> written_;  ///< by tile
};

}  // namespace spillway::engine
