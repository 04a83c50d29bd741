// Passes that another framework runs: what it needs of each block, and what it leaves.
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

/// Brings what is frozen of a streamed block to the device.
Buffer Builder::bring_frozen(std::uint32_t block) {
  const Buffer slot = take_free(PoolKind::frozen_slots);
  OpDraft upload = draft(OpKind::copy, Lane::h2d, block);
  upload.read({PoolKind::host_frozen, block}, {ValueKind::frozen, block});
  upload.write(slot, {ValueKind::frozen, block});
  upload.op.bytes = workload_.blocks[block].frozen_bytes;
  append(upload);
  return slot;
}

/// Has a pass read the parameters of its block where the framework finds them: on the host, or on
/// the device, to where they are uploaded. A block that is wholly frozen has no tiles.
Builder::ExternalWeights Builder::bring_external(OpDraft& pass) {
  const std::uint32_t block = pass.op.block;
  ExternalWeights weights{.trained = tiles_of(PoolKind::host_parameters, block), .frozen = {}};
  if (weights.trained.count > 0) {
    if (workload_.streams_external || placement_.blocks[block].resident()) {
      weights.trained = bring_parameters(block);
    }
    pass.read(weights.trained, parameters(block));
  }
  if (workload_.blocks[block].frozen_bytes > Bytes{}) {
    weights.frozen = bring_frozen(block);
    pass.read(weights.frozen, {ValueKind::frozen, block});
  }
  return weights;
}

void Builder::give_back(const ExternalWeights& weights) {
  give_back(weights.trained);
  give_back(weights.frozen);
}

/// Appends the pending update and a forward of each block, which waits for no more than the block's
/// own update.
void Builder::external_forward() {
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    update_block(block);
    OpDraft forward = draft(OpKind::forward, Lane::external, block);
    const ExternalWeights weights = bring_external(forward);
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
    ExternalWeights weights;
    if (workload_.streams_external) weights = bring_external(backward);
    const Buffer gradients = tiles_of(PoolKind::host_gradients, block);
    if (gradients.count > 0) {
      backward.write(gradients, {ValueKind::total_gradient, block, 0, round_});
    }
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
