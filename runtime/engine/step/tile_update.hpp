// TileUpdate: the update of a tile together with the checksums of what it reads and writes, some
// pages of every array at a time, while they are in the cache: memory is read and written as often
// as by the update alone. One tile at a time, by all workers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu_adam/update.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "runtime/base/units.hpp"

namespace spillway::engine {

/// Parameters that are read, updated and read again before the next: 256 KiB of state at most,
/// which every core keeps in a cache of its own.
constexpr std::size_t kCachedParameters = 4 * kLeafParameters;

/// One tile in memory, a whole number of leaves.
struct UpdatedTile {
  const cpu_adam::Kernel& kernel;
  std::span<const cpu_adam::ParameterGroup> groups;
  cpu_adam::UpdateRange range;  ///< of all of the tile, in place
  const cpu_adam::StateLayout& layout;
  std::span<const std::byte> state;       ///< [layout.bytes], where the range's state is
  std::span<const std::byte> parameters;  ///< where the range's are; empty: no checksum of them
  bool follows_values = false;  ///< masters become those of parameters that were written meanwhile
};

/// Checksums of a tile, each by `nvme_swap::checksum_of`.
struct TileChecksums {
  std::uint64_t before = 0;      ///< of the state as it was
  std::uint64_t state = 0;       ///< as it is now
  std::uint64_t parameters = 0;  ///< as they are now, if they were asked for
};

class TileUpdate {
 public:
  /// Serves tiles of up to this many bytes of state. `workers` outlives this.
  TileUpdate(cpu_adam::WorkerPool& workers, Bytes state);

  /// Updates the tile and sums it, inside a worker's task. Every byte of state is summed before it
  /// is updated. If `before` is wrong, neither the tile nor its parameters may be used any more.
  TileChecksums run(const UpdatedTile& tile);

 private:
  /// What is summed of a tile, in bytes of `from` and pages of `sums`.
  struct Pages {
    std::span<const std::byte> from;
    std::vector<std::uint64_t>& sums;
    void sum(std::size_t first, std::size_t last) const;
  };

  void sum_gaps(const cpu_adam::StateLayout& layout, const Pages& state) const;
  void run_part(const UpdatedTile& tile, std::size_t first, std::size_t last);

  cpu_adam::WorkerPool& workers_;
  std::vector<std::uint64_t> before_, state_, parameters_;  ///< of each page
};

}  // namespace spillway::engine
