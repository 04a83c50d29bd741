#include "runtime/plan/step/builder/builder.hpp"

#include "runtime/base/error.hpp"

namespace spillway::plan {

Builder::Builder(const Workload& workload, const Placement& placement, const WhichList& which,
                 bool records)
    : workload_(workload),
      speculation_(which.speculation),
      step_(workload, placement, which),
      state_(step_, weights_, records),
      passes_(workload.sums_passes() ? static_cast<PassWriter&>(of_group_) : whole_) {}

void Builder::restart(const Placement& placement) {
  step_.restart(placement);
  weights_.restart();
  gradients_.restart();
  activations_.restart();
  state_.restart();
  passes_.restart();
}

void Builder::forward_layer(std::uint32_t layer, MicroBatches range, bool train,
                            bool update_first) {
  const std::uint32_t end = workload_.first_block(layer + 1);
  for (std::uint32_t block = workload_.first_block(layer); block < end; ++block) {
    if (update_first) state_.update_block(block);
    passes_.visit_forward(block, range, train);
  }
}

/// Appends the updates of a layer whose gradients are complete, ahead of the decision, if the list
/// has any.
void Builder::update_ahead(std::uint32_t layer) {
  if (!speculation_.made || step_.round + 1 != workload_.rounds) return;
  const BlockRange blocks = workload_.blocks_of(layer);
  for (std::uint32_t block = blocks.end; block-- > blocks.first;) state_.update_ahead(block);
}

/// Appends one pass forward and backward. `update_first`: the pending update of each block stands
/// just ahead of the block's forward, so that on every lane it delays nothing that an earlier block
/// needs.
void Builder::pass(MicroBatches range, bool update_first) {
  const std::uint32_t last = workload_.head_layer();
  if (workload_.operator_tiles && update_first) state_.update_block(0);
  for (std::uint32_t layer = 0; layer < last; ++layer) {
    forward_layer(layer, range, /*train=*/true, update_first);
  }
  if (update_first) {
    for (std::uint32_t block = workload_.first_block(last); block < blocks(); ++block) {
      state_.update_block(block);
    }
    state_.append_step_commit();
  }
  passes_.visit_head(range, /*train=*/true);
  update_ahead(last);
  for (std::uint32_t layer = last; layer-- > 0;) {
    passes_.backward_layer(layer, range);
    update_ahead(layer);
  }
  if (workload_.operator_tiles && range.last == workload_.micro_batches)
    gradients_.finish_gradient(0);
}

void Builder::round(std::uint32_t round) {
  step_.round = round;
  const bool update_first = round == 0 && !workload_.stale.delays_updates;
  if (step_.placement.order == WorkOrder::layer_major) {
    pass({0, workload_.micro_batches}, update_first);
    return;
  }
  SPILLWAY_ASSERT(step_.placement.gradient_slots == workload_.blocks.size());
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    pass({m, m + 1}, update_first && m == 0);
  }
}

void Builder::training() {
  if (workload_.external) return external_.training();
  if (!workload_.stage.chunks.empty()) return staged_training();
  step_.trains = true;
  if (workload_.stale.delays_updates) {
    flush();
  } else {
    state_.find_ahead(speculation_.found);
  }
  for (std::uint32_t r = 0; r < workload_.rounds; ++r) round(r);
  state_.read_ahead();
}

void Builder::evaluation() {
  if (!workload_.stage.chunks.empty()) return staged_evaluation();
  // In the order of training, whose pools it uses.
  const bool whole = step_.placement.order == WorkOrder::layer_major;
  const std::uint32_t at_once = whole ? workload_.micro_batches : 1;
  for (std::uint32_t m = 0; m < workload_.micro_batches; m += at_once) {
    const MicroBatches range{m, m + at_once};
    for (std::uint32_t layer = 0; layer < workload_.head_layer(); ++layer) {
      forward_layer(layer, range, /*train=*/false, /*update_first=*/false);
    }
    passes_.visit_head(range, /*train=*/false);
  }
}

void Builder::flush() {
  state_.find_ahead(speculation_.found);
  if (workload_.stale.stashes()) {
    for (std::uint32_t block = 0; block < blocks(); ++block) state_.stash_block(block);
  }
  for (std::uint32_t block = 0; block < blocks(); ++block) state_.update_block(block);
  state_.append_step_commit();
}

}  // namespace spillway::plan
