#include "runtime/plan/step/builder/external_passes.hpp"

namespace spillway::plan {

/// A block that is wholly frozen has no tiles.
ExternalPasses::ExternalWeights ExternalPasses::bring_external(OpDraft& pass) {
  const std::uint32_t block = pass.op.block;
  ExternalWeights weights{.trained = tiles_of(PoolKind::host_parameters, block), .frozen = {}};
  if (weights.trained.count > 0) {
    if (workload_.streams_external || placement_.blocks[block].resident()) {
      weights.trained = weights_.bring_parameters(block);
    }
    pass.read(weights.trained, parameters(block));
  }
  if (workload_.blocks[block].frozen_bytes > Bytes{}) {
    weights.frozen = weights_.bring_frozen(block);
    pass.read(weights.frozen, {ValueKind::frozen, block});
  }
  return weights;
}

void ExternalPasses::give_back(const ExternalWeights& weights) {
  give_back(weights.trained);
  give_back(weights.frozen);
}

/// A forward waits for no more than the update of its own block.
void ExternalPasses::forward() {
  for (std::uint32_t block = 0; block < blocks(); ++block) {
    state_.update_block(block);
    OpDraft forward = draft(OpKind::forward, Lane::external, block);
    const ExternalWeights weights = bring_external(forward);
    append(forward);
    give_back(weights);
  }
  state_.append_step_commit();
}

void ExternalPasses::backward() {
  step_.round = workload_.rounds - 1;
  for (std::uint32_t block = blocks(); block-- > 0;) {
    OpDraft backward = draft(OpKind::backward, Lane::external, block);
    ExternalWeights weights;
    if (workload_.streams_external) weights = bring_external(backward);
    const Buffer gradients = tiles_of(PoolKind::host_gradients, block);
    if (gradients.count > 0) {
      backward.write(gradients, {ValueKind::total_gradient, block, 0, step_.round});
    }
    append(backward);
    give_back(weights);
    if (!workload_.streams_external) gradients_.append_norms(block, PoolKind::host_gradients);
  }
}

void ExternalPasses::norms() {
  step_.round = workload_.rounds - 1;
  for (std::uint32_t block = blocks(); block-- > 0;) {
    gradients_.append_norms(block, PoolKind::host_gradients);
  }
  state_.read_ahead();
}

/// Where parameters stay where they are, a step is one list, in which a norm follows its gradient.
/// Where they are streamed, a list is one pass: as many follow as the framework runs.
void ExternalPasses::training() {
  forward();
  if (workload_.streams_external) return;
  backward();
  state_.read_ahead();
}

}  // namespace spillway::plan
