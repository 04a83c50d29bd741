// RankSums: what a step leaves on each rank, its losses and the leaves of its norm, brought
// together from all of them, so that every rank decides alike. Control thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/step/step_engine.hpp"

namespace spillway::engine {

class RankSums {
 public:
  /// Allocates what the sums need. `engine` outlives this object, and its rank is one of several
  /// replicas.
  explicit RankSums(StepEngine& engine);

  /// Exchanges `host_leaves`, as the last step has left them, with the other ranks. Blocks.
  void gather();
  /// Returns the sum of all ranks' losses: round by round, in each in the order of ranks.
  [[nodiscard]] double loss() const;
  /// Returns the leaves of a block's gradient, from its start, until the next call.
  [[nodiscard]] std::span<const double> leaves(std::uint32_t block);

 private:
  [[nodiscard]] std::span<const double> of_rank(std::uint32_t rank) const;

  StepEngine& engine_;
  std::vector<std::size_t> first_leaf_;  // by block, in what a rank gives; behind them the losses
  std::vector<double> leaves_;           // of the largest block
};

}  // namespace spillway::engine
