// TrainingState: the few numbers that a commit records beside the tiles, and their bytes on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/schedule.hpp"
#include "runtime/plan/ranks.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Everything that the next step depends on and that is not a tile, data or configuration.
struct TrainingState {
  std::uint64_t step = 0;     ///< steps done, skipped ones included
  std::uint64_t updates = 0;  ///< updates applied: Adam's t
  std::uint64_t cursor = 0;   ///< windows of training data drawn
  config::LossScaleState loss_scale;
  std::uint32_t skipped_in_a_row = 0;
  std::uint64_t skipped = 0;

  bool operator==(const TrainingState&) const = default;
};

/// The rank whose tiles a commit names, and what it has of the model.
struct SavedRank {
  plan::Grid grid;
  std::uint32_t rank = 0;  ///< of `grid.ranks()`
  plan::Sharding sharding = plan::Sharding::none;
  std::vector<plan::BlockRange> layers;  ///< of the rank's stage; none: all, there is one

  bool operator==(const SavedRank&) const = default;
};
[[nodiscard]] SavedRank saved_rank_of(const plan::Workload& workload, const plan::GridPlace& place);
/// Returns "rank 1 of 4", and of a pipeline which layers it has.
[[nodiscard]] std::string to_text(const SavedRank& saved);

/// Writes a little-endian record with a version. Allocates nothing if `bytes` has the capacity.
/// `rank`: whose tiles the commit names.
void encode(const TrainingState& state, const SavedRank& rank, std::vector<std::byte>& bytes);
/// Reads the state from a record. Throws `Error{corrupt_data}` for another version or length.
[[nodiscard]] TrainingState decode(std::span<const std::byte> bytes);
/// Reads from a record whose tiles the commit names. Throws the same.
[[nodiscard]] SavedRank decode_rank(std::span<const std::byte> bytes);

}  // namespace spillway::engine
