// Gradients: their way from the sum over micro-batches to the update's tier, over other ranks where
// there are any, and their norms.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/reduction.hpp"
#include "runtime/plan/step/builder/step_draft.hpp"

namespace spillway::plan {

class Gradients : public OpWriter {
 public:
  explicit Gradients(StepDraft& step) : OpWriter(step) { restart(); }
  /// Forgets the accumulators of the last list.
  void restart() { accumulator_.assign(workload_.blocks.size(), {}); }

  /// Returns the block's accumulator of the round; takes one if the range has the first
  /// micro-batch.
  Buffer accumulator_of(std::uint32_t block, MicroBatches range);
  /// Declares that the op adds its micro-batch's gradient to the accumulator.
  void add_gradient(OpDraft& draft, const Buffer& accumulator);
  /// Declares that the op adds the gradient of a norm, after the passes of all micro-batches.
  void add_norm_gradient(OpDraft& draft, const Buffer& accumulator);
  /// Declares that the op adds to the gradient of the vectors of tiles. No effect without tiles.
  void write_vectors(OpDraft& draft) const;
  /// Rounds the block's gradient of the round, complete in its accumulator, and moves it to the
  /// update's tier; in the last round, appends its norms.
  void finish_gradient(std::uint32_t block);
  /// Appends the norms of the block's tiles, from gradients in that pool. No effect but in the last
  /// round.
  void append_norms(std::uint32_t block, PoolKind gradients);

 private:
  /// Adds up over the tensor group the round's gradients from `BlockShape::partial_first` on.
  void sum_shared(std::uint32_t block);
  /// Returns the part of a block's gradient sum that its last writer in a round leaves.
  [[nodiscard]] std::uint32_t last_addition(std::uint32_t block) const {
    const std::uint32_t passes = workload_.micro_batches;
    const bool has_norm = workload_.sums_passes() && workload_.layer_of(block) > 0;
    return (has_norm ? 2 * passes : passes) - 1 + (workload_.sums_shared(block) ? 1 : 0);
  }
  /// Downloads the round's gradient, or this rank's part of it; several are summed on the host.
  void download_gradient(std::uint32_t block, const Buffer& gradient);
  void download_total(std::uint32_t block);
  [[nodiscard]] Reduction reduction_of(std::uint32_t block) const {
    return plan::reduction_of(workload_, workload_.blocks[block].padded_parameters);
  }
  /// Returns a buffer with what this rank gets of all ranks' gradients of a round.
  [[nodiscard]] Buffer reduce_gradient(std::uint32_t block, const Buffer& gradient);

  std::vector<Buffer> accumulator_;  // by block, of the visit under way
};

}  // namespace spillway::plan
