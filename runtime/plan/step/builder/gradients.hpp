// Gradients: their way from the sum over micro-batches to the update's tier, over other ranks where
// there are any, and their norms.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/step/builder/step_draft.hpp"

namespace spillway::plan {

class Gradients : public StepPart {
 public:
  explicit Gradients(StepDraft& step) : StepPart(step) { restart(); }
  void restart() { accumulator_.assign(workload_.blocks.size(), {}); }

  Buffer accumulator_of(std::uint32_t block, MicroBatches range);
  void add_gradient(OpDraft& draft, const Buffer& accumulator);
  void add_norm_gradient(OpDraft& draft, const Buffer& accumulator);
  void write_vectors(OpDraft& draft) const;
  void finish_gradient(std::uint32_t block);
  void append_norms(std::uint32_t block, PoolKind gradients);

 private:
  void sum_shared(std::uint32_t block);
  /// Returns the part of a block's gradient sum that its last writer in a round leaves.
  [[nodiscard]] std::uint32_t last_gradient_part(std::uint32_t block) const {
    const std::uint32_t passes = workload_.micro_batches;
    const bool has_norm = workload_.sums_passes() && workload_.layer_of(block) > 0;
    return (has_norm ? 2 * passes : passes) - 1 + (workload_.sums_shared(block) ? 1 : 0);
  }
  void download_gradient(std::uint32_t block, const Buffer& gradient);
  [[nodiscard]] Buffer reduce_gradient(std::uint32_t block, const Buffer& gradient);

  std::vector<Buffer> accumulator_;  // by block, of the visit under way
};

}  // namespace spillway::plan
