// Passes that another framework runs: what it needs of each block, and what it leaves.
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

/// Returns where the framework finds the block's parameters; uploads them if they are streamed.
Buffer Builder::bring_external(std::uint32_t block) {
  if (workload_.streams_external || placement_.blocks[block].resident()) {
    return bring_parameters(block);
  }
  return tiles_of(PoolKind::host_parameters, block);
}

/// Appends the pending update and a forward of each block, which waits for no more than the block's
/// own update.
void Builder::external_forward() {
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    update_block(block);
    const Buffer weights = bring_external(block);
    OpDraft forward = draft(OpKind::forward, Lane::external, block);
    forward.read(weights, parameters(block));
    append(forward);
    give_back(weights);
  }
  append_step_commit();
}

/// Appends a backward of each block, the last one first, which leaves the gradient of the whole
/// step on the host.
void Builder::external_backward() {
  round_ = workload_.rounds - 1;
  for (std::uint32_t block = blocks(); block-- > 0;) {
    OpDraft backward = draft(OpKind::backward, Lane::external, block);
    const Buffer weights = bring_external(block);
    if (workload_.streams_external) backward.read(weights, parameters(block));
    backward.write(tiles_of(PoolKind::host_gradients, block),
                   {ValueKind::total_gradient, block, 0, round_});
    append(backward);
    give_back(weights);
    if (!workload_.streams_external) append_norms(block, PoolKind::host_gradients);
  }
}

/// Appends the norms of gradients that several backward passes have left.
void Builder::external_norms() {
  round_ = workload_.rounds - 1;
  for (std::uint32_t block = blocks(); block-- > 0;) {
    append_norms(block, PoolKind::host_gradients);
  }
  read_ahead();
}

/// Where parameters stay where they are, a step is one list, in which a norm follows its gradient.
/// Where they are streamed, a list is one pass: as many follow as the framework runs.
void Builder::external_training() {
  external_forward();
  if (workload_.streams_external) return;
  external_backward();
  read_ahead();
}

}  // namespace spillway::plan
