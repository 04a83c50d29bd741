// Grid: how the ranks of a job share out its work. Those of a tensor group, which share out every
// matrix, have numbers in a row; then come the replicas of a stage of a pipeline, each of which has
// micro-batches of its own, then the stages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::plan {

/// A group of ranks that one of them belongs to.
enum class RankGroup : std::uint8_t {
  job,       ///< all ranks
  replicas,  ///< of its stage, which share out a step's micro-batches
  node,    ///< replicas of a machine that share out a second copy of parameters (Ranks::secondary)
  stages,  ///< of a pipeline
  tensor,  ///< the ranks that share out every matrix (TensorGroup)
};
inline constexpr std::size_t kRankGroups = 5;

struct Grid {
  std::uint32_t stages = 1;
  std::uint32_t replicas = 1;  ///< of each stage
  std::uint32_t tensor = 1;    ///< ranks of each replica

  [[nodiscard]] std::uint32_t ranks() const { return stages * replicas * tensor; }
  [[nodiscard]] bool all_replicas() const { return stages == 1 && tensor == 1; }
  [[nodiscard]] std::uint32_t stage_of(std::uint32_t rank) const {
    return rank / (replicas * tensor);
  }
  [[nodiscard]] std::uint32_t replica_of(std::uint32_t rank) const {
    return rank / tensor % replicas;
  }
  [[nodiscard]] std::uint32_t part_of(std::uint32_t rank) const { return rank % tensor; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t stage, std::uint32_t replica,
                                      std::uint32_t part = 0) const {
    return (stage * replicas + replica) * tensor + part;
  }
  bool operator==(const Grid&) const = default;
};

/// A rank's place in the grid of its job.
struct GridPlace {
  Grid grid{};
  std::uint32_t rank = 0;

  [[nodiscard]] std::uint32_t stage() const { return grid.stage_of(rank); }
  [[nodiscard]] std::uint32_t replica() const { return grid.replica_of(rank); }
  [[nodiscard]] std::uint32_t part() const { return grid.part_of(rank); }
  bool operator==(const GridPlace&) const = default;
};

}  // namespace spillway::plan
