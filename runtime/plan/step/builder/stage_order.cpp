// The step of a stage of a pipeline: passes of rounds in the order of its schedule, and the
// messages between them.
#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/plan/step/builder/builder.hpp"

namespace spillway::plan {

void Builder::run_forward(const BlockRange& layers) {
  const bool train = step_.trains;
  const MicroBatches all{0, workload_.micro_batches};
  weights_.gather_until(blocks());  // another chunk or round may be next
  const bool update_first = train && step_.round == 0 && !workload_.stale.stays_full();
  const std::uint32_t head = workload_.head_layer();
  if (layers.first > 0) activations_.restore_boundary(Direction::forward, layers.first - 1);
  for (std::uint32_t layer = layers.first; layer < std::min(layers.end, head); ++layer) {
    forward_layer(layer, all, train, update_first);
  }
  const bool ends = layers.contains(head);
  if (ends && update_first) state_.update_block(workload_.first_block(head));
  if (update_first && layers.first == workload_.stage.chunks.back().first)
    state_.append_step_commit();
  if (!ends) return activations_.put_by(Direction::forward, layers.end - 1);
  passes_.visit_head(all, train);
  if (train) activations_.put_by(Direction::backward, head - 1);
}

void Builder::run_backward(const BlockRange& layers) {
  const MicroBatches all{0, workload_.micro_batches};
  weights_.gather_until(std::max(layers.first, 1U));
  const std::uint32_t end = std::min(layers.end, workload_.head_layer());
  activations_.restore_boundary(Direction::backward, end - 1);
  for (std::uint32_t layer = end; layer-- > layers.first;) passes_.backward_layer(layer, all);
  if (layers.first > 0) activations_.put_by(Direction::backward, layers.first - 1);
}

/// In a pipeline that stays full, passes of the step use the parameters before the pending update,
/// and passes of the next step those behind it.
void Builder::staged_training() {
  step_.trains = true;
  if (workload_.borrows_embedding()) messages_.borrow_embedding();
  if (workload_.stale.stays_full()) {
    step_.ops.plan().rounds_found =
        workload_.stale.begun + 1;  // of one of them, what a forward reads
    flush();
    if (workload_.lends_embedding()) messages_.lend_stash_of_embedding();
  }
  run_entries(workload_.stage.entries);
  state_.read_ahead();
}

/// Writes the passes forward that a step leaves to the one before it.
void Builder::fill() {
  step_.trains = true;
  run_entries(workload_.stale.fill);
}

void Builder::run_entries(const std::vector<StageEntry>& entries) {
  for (const StageEntry& entry : entries) {
    step_.round = entry.pass.round;
    const BlockRange& layers = workload_.stage.chunks[entry.pass.chunk];
    if (entry.kind != StageEntry::Kind::run) {
      messages_.exchange(entry);
    } else if (entry.pass.direction == Direction::forward) {
      run_forward(layers);
    } else {
      run_backward(layers);
    }
  }
  SPILLWAY_ASSERT(activations_.all_restored());
}

void Builder::staged_evaluation() {
  if (workload_.borrows_embedding()) messages_.borrow_embedding();
  run_entries(workload_.stage.evaluation);
}

}  // namespace spillway::plan
