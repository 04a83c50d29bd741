// RankSums: what steps leave on each rank, their losses and the leaves of their norms, added up
// over all ranks, so that every rank decides alike. Each result is one step's; results are counted
// from the last time that the stages of the pipeline met. Control thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/step/step_engine.hpp"

namespace spillway::engine {

class RankSums {
 public:
  /// Allocates what sums of so many results need. `engine` outlives this object.
  RankSums(StepEngine& engine, std::size_t most_results);

  /// Adds up what the last step has left on the ranks of this stage. Blocks.
  void add_up_stage(std::size_t result);
  /// Adds up the first results of all stages, which all have those of their own. Blocks.
  void add_up_stages(std::size_t results);
  /// Returns the sum of the step's losses, as far as it is added up.
  [[nodiscard]] double loss(std::size_t result) const;
  /// Returns the sum of squares of its gradient, as the step has scaled it.
  [[nodiscard]] double squares(std::size_t result) const;

 private:
  [[nodiscard]] bool has_replicas() const;
  void gather_leaves();
  [[nodiscard]] std::span<const double> of_replica(std::uint32_t replica) const;
  [[nodiscard]] double sum_of(std::span<const double> own_losses) const;
  [[nodiscard]] std::span<const double> leaves_of(std::uint32_t block);
  [[nodiscard]] std::size_t own_leaves(std::uint32_t block, std::size_t all) const;
  [[nodiscard]] std::span<const double> numbers_of(std::size_t result) const;

  StepEngine& engine_;
  std::vector<std::size_t> first_leaf_;  // by block, in what a rank gives; behind them the losses
  std::vector<double> leaves_;           // of the largest block, where there are replicas
  std::vector<double> numbers_;          // of each result: squares by block, and the loss
};

}  // namespace spillway::engine
