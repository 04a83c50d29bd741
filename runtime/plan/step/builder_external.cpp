// Passes that another framework runs: what it needs of each block, and what it leaves.
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

/// Appends the pending update, then a forward of each block, which waits for no more than the
/// block's own update, then the backward of each in reverse, which leaves the gradient of the whole
/// step on the host.
void Builder::external_step() {
  round_ = workload_.rounds - 1;
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    update_block(block);
    OpDraft forward = draft(OpKind::forward, Lane::external, block);
    forward.read(tiles_of(PoolKind::host_parameters, block), parameters(block));
    append(forward);
  }
  append_step_commit();
  for (std::uint32_t block = blocks(); block-- > 0;) {
    OpDraft backward = draft(OpKind::backward, Lane::external, block);
    backward.write(tiles_of(PoolKind::host_gradients, block),
                   {ValueKind::total_gradient, block, 0, round_});
    append(backward);
    append_norms(block, PoolKind::host_gradients);
  }
  read_ahead();
}

}  // namespace spillway::plan
