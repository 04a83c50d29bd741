// How the ranks of a job share out its work. Those of a tensor group, which share out every matrix,
// have numbers in a row; then come the replicas of a stage of a pipeline, each of which has
// micro-batches of its own, then the stages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/plan/orders.hpp"

namespace spillway::plan {

/// A group of ranks that one of them belongs to.
enum class RankGroup : std::uint8_t {
  job,       ///< all ranks
  replicas,  ///< of its stage, which share out a step's micro-batches
  node,      ///< replicas that share out a second copy of parameters (Replicas::secondary)
  stages,    ///< of a pipeline
  tensor,    ///< the ranks that share out every matrix (TensorGroup)
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
  [[nodiscard]] std::uint32_t tensor_index_of(std::uint32_t rank) const { return rank % tensor; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t stage, std::uint32_t replica,
                                      std::uint32_t tensor_index = 0) const {
    return (stage * replicas + replica) * tensor + tensor_index;
  }
  bool operator==(const Grid&) const = default;
};

/// A rank's place in the grid of its job.
struct GridPlace {
  Grid grid{};
  std::uint32_t rank = 0;

  [[nodiscard]] std::uint32_t stage() const { return grid.stage_of(rank); }
  [[nodiscard]] std::uint32_t replica() const { return grid.replica_of(rank); }
  [[nodiscard]] std::uint32_t tensor_index() const { return grid.tensor_index_of(rank); }
  bool operator==(const GridPlace&) const = default;
};

/// What each rank holds one part of, its shard (Rajbhandari et al. 2020, ZeRO, section 5).
enum class Sharding : std::uint8_t {
  none,        ///< stage 0: every rank holds and updates everything
  state,       ///< stages 1 and 2: the rank's part of state and gradients; parameters whole
  parameters,  ///< stage 3: the rank's part of these too; a pass gathers them block by block
};

/// The replicas of a stage, each with micro-batches of its own.
struct Replicas {
  std::uint32_t count = 1;
  Sharding sharding = Sharding::none;
  SumOrder sums = SumOrder::fast;
  /// With Sharding::parameters, number of ranks of a node that share out a second copy of the
  /// parameters: it keeps the blocks that a visit gathered for the next visits of the step (Wang et
  /// al. 2023, ZeRO++, section 3.2). Divides `count`; 1: there is no second copy.
  std::uint32_t secondary = 1;
};

/// The ranks that share out every matrix of a model, a tensor group (Shoeybi et al. 2019,
/// Megatron-LM, section 3). All have the same micro-batches.
struct TensorGroup {
  std::uint32_t count = 1;
  /// Whether each rank keeps only its own tokens between blocks, and gathers the tokens of all
  /// ranks for the matrices (Korthikanti et al. 2022, section 4.2.2).
  bool sequence = false;
};

}  // namespace spillway::plan
