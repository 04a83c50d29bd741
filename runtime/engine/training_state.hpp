// TrainingState: the few numbers that a commit records beside the tiles, and their bytes on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/config/schedule.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Holds everything that the next step depends on and that is not a tile, data or configuration.
struct TrainingState {
  std::uint64_t step = 0;     ///< steps done, skipped ones included
  std::uint64_t updates = 0;  ///< updates applied: Adam's t
  std::uint64_t cursor = 0;   ///< windows of training data drawn
  config::LossScaleState loss_scale;
  std::uint32_t skipped_in_a_row = 0;
  std::uint64_t skipped = 0;

  bool operator==(const TrainingState&) const = default;
};

/// Writes a fixed-size little-endian record with a version. Allocates nothing if `bytes` has the
/// capacity. `ranks` says whose tiles the commit names.
void encode(const TrainingState& state, const plan::Ranks& ranks, std::vector<std::byte>& bytes);
/// Throws `Error{corrupt_data}` for another version or length.
[[nodiscard]] TrainingState decode(std::span<const std::byte> bytes);
/// Returns number, rank and sharding of `encode`. Throws the same.
[[nodiscard]] plan::Ranks decode_ranks(std::span<const std::byte> bytes);

}  // namespace spillway::engine
