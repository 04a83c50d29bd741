// Grid: how the ranks of a job share out its work. Those of a tensor group, which share out every
// matrix, have numbers in a row; then come the replicas of a stage of a pipeline, each of which has
// micro-batches of its own, then the stages.
#pragma once

#include <cstdint>

namespace spillway::plan {

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

}  // namespace spillway::plan
