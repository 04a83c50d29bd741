// SavedState: the committed state of a run of any number of ranks, read only. It answers for any
// range of a block from the tiles of the rank that saved it, one tile at a time, every checksum
// verified; how many ranks read, in which stage, tier and format, is theirs to choose. Blocks are
// those of the whole model, also where a tensor group has saved its parts of them. It takes no
// lock: processes that train the run go on. One call at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cpu_adam/state_format.hpp"
#include "nvme_swap/committed_tiles.hpp"
#include "offload/memory.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/state/state_slots.hpp"
#include "runtime/engine/state/training_state.hpp"
#include "runtime/engine/state/wide_windows.hpp"
#include "runtime/model/part_map.hpp"

namespace spillway::engine {

/// Error of a reader: a commit has overwritten the step that was being read. Begin again.
class Overtaken final : public Error {
 public:
  explicit Overtaken(const std::filesystem::path& state);
};

/// Returns what `work` returns, which reads a state; calls it again, a few times, if it was
/// overtaken.
template <class Work>
auto retry_overtaken(const Work& work) {
  constexpr int kAttempts = 8;
  for (int attempt = 1;; ++attempt) {
    try {
      return work();
    } catch (const Overtaken&) {
      if (attempt == kAttempts) throw;
    }
  }
}

/// What the tiles of a saved state follow from, beside the ranks that its commits record.
struct SavedShape {
  model::ModelConfig model{};
  std::vector<ElementCount> blocks{};  ///< the parameters of each, with the padding of one rank
  StateFormat format = StateFormat::fp32;
  ElementCount tile_parameters{};
};

/// Number of ranks that saved the state; `first`: the store of rank 0.
[[nodiscard]] std::uint32_t saved_ranks(const nvme_swap::StoreOptions& first);

class SavedState {
 public:
  /// Opens the store of each rank, in their order, at the newest step that all of them have: a rank
  /// may have committed one step that another has not. Throws `Error{corrupt_data}`, which names
  /// rank, step and folder, for a store that is missing or damaged, of another rank or another
  /// model, or without that step, and `Overtaken`.
  SavedState(const SavedShape& shape, const std::vector<nvme_swap::StoreOptions>& stores);
  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;
  ~SavedState() = default;

  [[nodiscard]] const TrainingState& state() const { return state_; }
  /// Returns the ranks that saved it.
  [[nodiscard]] const plan::Grid& grid() const { return grid_; }
  /// Returns how the replicas of a stage share it.
  [[nodiscard]] plan::Sharding sharding() const { return workload_.replicas.sharding; }
  [[nodiscard]] std::span<const ElementCount> blocks() const { return shape_.blocks; }
  /// Returns a folder that holds it: that of the first rank.
  [[nodiscard]] const std::filesystem::path& folder() const { return shards_[0].folder; }
  /// Bytes of host memory that reading takes: a slot of the largest tile for each part, and
  /// windows.
  [[nodiscard]] Bytes reading_bytes() const {
    return staging_.size() + WideWindows::kBytes * std::uint64_t{windows_.size() + 1};
  }

  /// Reads the whole state. Throws `Overtaken`, and `Error{corrupt_data}` for a damaged tile.
  void verify() const;
  /// Reads `wide.master.size()` parameters of a block from `first`, and their moments where `wide`
  /// wants them; both ends are then multiples of `kLeafParameters`. Values behind the block are
  /// zero. Throws `Overtaken`, and `Error{corrupt_data}` for a damaged tile.
  void read(BlockIndex block, ElementCount first, const cpu_adam::WideState& wide) const;
  /// Reads likewise into a slot of this layout, which begins at `first`, a multiple of
  /// `kLeafParameters`. No bit changes where the format is the one that was saved, unless a tensor
  /// group saved int8 moments, which are rounded anew.
  void read_slot(BlockIndex block, ElementCount first, const cpu_adam::StateLayout& layout,
                 std::span<std::byte> slot) const;
  /// Reads likewise for a block of a part of the model. In format int8, moments are rounded anew.
  void read_slot(const model::PartMap& part, BlockIndex block, ElementCount first,
                 const cpu_adam::StateLayout& layout, std::span<std::byte> slot) const;

 private:
  struct Shard {
    std::filesystem::path folder;
    StateSlots slots;
    std::unique_ptr<nvme_swap::CommittedTiles> tiles;
  };
  /// The part of a wanted range that one saved tile has.
  struct Piece {
    const std::byte* slot;         ///< that is loaded
    cpu_adam::StateLayout layout;  ///< of the part in it
    std::size_t first;             ///< in the wanted range
    std::size_t count;
  };
  void open(const std::vector<nvme_swap::StoreOptions>& stores);
  void take_common_step();
  [[nodiscard]] bool overtaken() const;
  void check_rank(std::uint32_t rank, std::size_t stores);
  void make_slots(std::uint32_t rank);
  void check_whole() const;
  /// Calls `body` with each loaded piece of a range of a block, as one rank of a tensor group has
  /// it.
  template <class Body>
  void for_each_piece(std::uint32_t part, BlockIndex block, ElementCount first, ElementCount count,
                      const Body& body) const;
  void read_part(std::uint32_t part, BlockIndex block, ElementCount first,
                 const cpu_adam::WideState& wide) const;
  void make_parts();
  [[nodiscard]] std::span<std::byte> staging_of(std::uint32_t rank) const;
  void load(std::uint32_t rank, std::uint32_t tile) const;

  SavedShape shape_;
  plan::Grid grid_;
  plan::Workload workload_;                             ///< its blocks and ranks alone
  std::vector<std::optional<std::uint32_t>> stage_of_;  ///< by block: what has it
  TrainingState state_;
  std::vector<Shard> shards_;                    ///< by rank
  std::vector<model::PartMap> parts_;            ///< of a tensor group; else none
  mutable std::vector<WideWindows> windows_;     ///< by part
  mutable std::optional<WideWindows> of_whole_;  ///< what parts of a model are read from
  std::unique_ptr<offload::DeviceBackend> backend_;
  Bytes largest_slot_;
  offload::PinnedMemory staging_;  ///< a slot for each of a tensor group
  /// By part: the rank and the tile whose slot is loaded.
  mutable std::vector<std::optional<std::pair<std::uint32_t, std::uint32_t>>> loaded_;
};

}  // namespace spillway::engine
