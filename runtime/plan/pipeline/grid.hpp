// Grid: how the ranks of a job share out its work. Those of one stage of a pipeline, its replicas,
// have numbers in a row; each has micro-batches of its own.
#pragma once

#include <cstdint>

namespace spillway::plan {

struct Grid {
  std::uint32_t stages = 1;
  std::uint32_t replicas = 1;  ///< of each stage

  [[nodiscard]] std::uint32_t ranks() const { return stages * replicas; }
  [[nodiscard]] std::uint32_t stage_of(std::uint32_t rank) const { return rank / replicas; }
  [[nodiscard]] std::uint32_t replica_of(std::uint32_t rank) const { return rank % replicas; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t stage, std::uint32_t replica) const {
    return stage * replicas + replica;
  }
  bool operator==(const Grid&) const = default;
};

}  // namespace spillway::plan
