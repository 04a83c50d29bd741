// Moves whole tiles of optimizer state between their homes, staging and the store: at start, at
// resume and for export. Not on the step path; every call blocks.
#pragma once

#include <cstdint>
#include <span>

#include "cpu_adam/adam.hpp"
#include "nvme_swap/tile_store.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/state/saved_state.hpp"
#include "runtime/engine/state/state_slots.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/engine/step/memory.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::engine {

class StepEngine;

class StateIo {
 public:
  /// `engine` outlives this object.
  explicit StateIo(StepEngine& engine);

  /// Sets masters from `source`, moments to zero, and parameters rounded from the masters.
  void initialize(const model::ParameterSource& source);
  /// Reads all tiles of the store's committed version, every checksum verified.
  void restore();
  /// Writes the weights that the next step's passes use to the store, for the next commit. Call it
  /// where updates are delayed, and behind the last one.
  void keep_stash();
  /// Takes the tiles of this rank's shard from a saved state of the same blocks, whoever saved it.
  /// After `Overtaken` the state here is undefined. `part`: of the saved blocks, which are those of
  /// the whole model, the part that this rank has; null: all.
  void adopt(const SavedState& source, const model::PartMap* part = nullptr);
  /// Takes back the updates of blocks from `first` on that no commit names: state on disk, and what
  /// follows from it in memory, are those of the newest commit.
  void undo(std::uint32_t first);
  /// Copies the newest version of all tiles of the store into `target`, and commits them there.
  void copy(nvme_swap::TileStore& target, const nvme_swap::CommitHeader& commit);
  /// Reads all tiles of `target`. Throws `Error{corrupt_data}` naming file and tile unless each is
  /// what was written.
  void verify(nvme_swap::TileStore& target);
  /// Reads the masters of one block, [padded], from wherever they live: those of this rank's shard;
  /// the others stay as they are. No update may be pending.
  void read_masters(std::uint32_t block, std::span<float> masters);

 private:
  /// Returns a staging buffer as a whole slot of the tile.
  [[nodiscard]] std::span<std::byte> staging(std::uint32_t tile) const;
  [[nodiscard]] std::span<std::byte> host_parameters(std::uint32_t tile) const {
    return memory_.host({plan::PoolKind::host_parameters, tile});
  }
  /// Whether the store holds a slot already.
  enum class Stored : std::uint8_t { no, yes };
  /// Moves a whole slot of `tile`, its parameters included, from staging to the tile's home.
  void bring_home(std::uint32_t tile, Stored stored);
  /// Reads the parameters of a tile that lives on disk to where they are in host memory.
  void restore_parameters(std::uint32_t tile);
  /// Writes the 16-bit parameters of the slot, or in format fp32 those rounded from its masters.
  void write_parameters(std::uint32_t tile, std::span<std::byte> slot, std::byte* target) const;
  void restore_stash();
  /// Returns where the stash of a tile is, on the device and on the host; one of them is empty.
  struct Stash {
    offload::DeviceSpan<std::byte> device;
    std::span<std::byte> host;
  };
  [[nodiscard]] Stash stash_of(std::uint32_t tile) const;
  void upload_residents();
  void gather_residents(std::uint32_t block);

  const StepEngine& engine_;
  const plan::Workload& workload_;
  const plan::Placement& placement_;
  Memory& memory_;
  const StateSlots& slots_;
  Streams& streams_;
  nvme_swap::TileStore* store_;  // null where all state lies in memory and is never committed
  cpu_adam::Isa isa_;
  const RankGroups& ranks_;
};

}  // namespace spillway::engine
