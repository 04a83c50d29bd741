// The step of a stage of a pipeline: passes of rounds in the order of its schedule, and what passes
// between it and its neighbours. The net lane keeps the order of messages, in which nothing waits
// for itself (plan/pipeline/timeline.hpp).
#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

void Builder::run_forward(const BlockRange& layers, bool train) {
  const MicroBatches all{0, workload_.micro_batches};
  ahead_until_ = blocks();  // another chunk or round may be next
  const bool update_first = train && round_ == 0 && !workload_.stage.stays_full();
  const std::uint32_t head = workload_.head_layer();
  if (layers.first > 0) restore_boundary(Direction::forward, layers.first - 1);
  for (std::uint32_t layer = layers.first; layer < std::min(layers.end, head); ++layer) {
    forward_layer(layer, all, train, update_first);
  }
  const bool ends = layers.contains(head);
  if (ends && update_first) update_block(workload_.first_block(head));
  if (update_first && layers.first == workload_.stage.chunks.back().first) append_step_commit();
  if (!ends) return put_by(Direction::forward, layers.end - 1);
  visit_head(all, train);
  if (train) put_by(Direction::backward, head - 1);
}

void Builder::run_backward(const BlockRange& layers) {
  const MicroBatches all{0, workload_.micro_batches};
  ahead_until_ = std::max(layers.first, 1U);
  const std::uint32_t end = std::min(layers.end, workload_.head_layer());
  restore_boundary(Direction::backward, end - 1);
  for (std::uint32_t layer = end; layer-- > layers.first;) backward_layer(layer, all);
  if (layers.first > 0) put_by(Direction::backward, layers.first - 1);
}

/// The boundaries of a round that have come, or that its pass has made, wait in their slots while
/// passes and messages of other rounds go on.
void Builder::put_by(Direction direction, std::uint32_t layer) {
  const bool in_slots = direction == Direction::forward
                            ? boundary_home(workload_, placement_, layer) != Tier::device
                            : placement_.boundary_slots > 0;
  if (!in_slots) return;
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    waiting_.emplace(passing(direction, layer, m), passing_[m]);
  }
}

/// The pass that reads them begins, or they are sent.
void Builder::restore_boundary(Direction direction, std::uint32_t layer) {
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    const auto waits = waiting_.extract(passing(direction, layer, m));
    if (!waits.empty()) passing_[m] = waits.mapped();
  }
}

void Builder::append_message(OpKind kind, std::uint32_t peer, std::uint32_t block, std::uint32_t m,
                             Bytes bytes, const Access& what) {
  OpDraft message = draft(kind, Lane::net, block, m);
  message.op.group = RankGroup::stages;
  message.op.peer = peer;
  message.op.bytes = bytes;
  message.op.copied.what = what.value.kind;
  kind == OpKind::send ? message.read(what.buffer, what.value)
                       : message.write(what.buffer, what.value);
  append(message);
}

/// A pass forward reads the output of the layer before its chunk, and one backward the gradient of
/// its chunk's output; it makes the same for the pass that follows it on another stage.
void Builder::exchange(const StageStep& step) {
  if (step.tied) return exchange_tied_gradient(step);
  const BlockRange& layers = workload_.stage.chunks[step.pass.chunk];
  const bool receives = step.kind == StageStep::Kind::receive;
  const bool forward = step.pass.direction == Direction::forward;
  const std::uint32_t layer = receives == forward ? layers.first - 1 : layers.end - 1;
  receives ? receive_boundaries(step, layer) : send_boundaries(step, layer);
}

/// What a backward will read again leaves the device as soon as it has come.
void Builder::receive_boundaries(const StageStep& step, std::uint32_t layer) {
  const Direction direction = step.pass.direction;
  const bool forward = direction == Direction::forward;
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    const Buffer place = forward ? place_for_output(layer, m) : place_for_gradient(m);
    append_message(OpKind::receive, step.peer, workload_.first_block(layer), m,
                   workload_.boundary_bytes,
                   {.buffer = place, .value = passing(direction, layer, m)});
    forward ? pass_activation(layer, m, place, trains_) : pass_gradient(m, place);
  }
  put_by(direction, layer);
}

void Builder::send_boundaries(const StageStep& step, std::uint32_t layer) {
  const Direction direction = step.pass.direction;
  const bool forward = direction == Direction::forward;
  restore_boundary(direction, layer);
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    const Buffer made = forward ? passing_activation(layer, m) : passing_gradient(m);
    append_message(OpKind::send, step.peer, workload_.first_block(layer), m,
                   workload_.boundary_bytes,
                   {.buffer = made, .value = passing(direction, layer, m)});
    give_back(made);
  }
}

/// The head's stage keeps the sums of as many rounds as are on their way; the embedding's adds them
/// in the order of rounds, one at a time.
void Builder::exchange_tied_gradient(const StageStep& step) {
  const bool sends = step.kind == StageStep::Kind::send;
  append_message(sends ? OpKind::send : OpKind::receive, step.peer, 0, 0,
                 Bytes{workload_.tied_elements.value() * sizeof(float)},
                 {.buffer = tied_accumulator(0), .value = tied_gradient(0)});
}

/// The first stage lends it before anything else passes between the two.
void Builder::lend_embedding(const Buffer& weights) {
  append_message(OpKind::send, workload_.stage.count - 1, 0, 0,
                 Bytes{workload_.tied_elements.value() * size_of(workload_.compute)},
                 {.buffer = weights, .value = parameters(0)});
}

/// The head runs this step's rounds alone, whose first passes forward another list has.
void Builder::lend_stash_of_embedding() {
  const Buffer weights = bring_parameters(0);
  lend_embedding(weights);
  give_back(weights);
}

void Builder::borrow_embedding() {
  append_message(OpKind::receive, 0, 0, 0,
                 Bytes{workload_.tied_elements.value() * size_of(workload_.compute)},
                 {.buffer = {PoolKind::tied_parameters}, .value = parameters(0)});
}

/// In a pipeline that stays full, passes of the step use the parameters before the pending update,
/// and passes of the next step those behind it.
void Builder::staged_training() {
  trains_ = true;
  if (workload_.borrows_embedding()) borrow_embedding();
  if (workload_.stage.stays_full()) {
    plan_.begun = workload_.stage.begun + 1;  // of one of them, what a forward reads
    flush();
    if (workload_.lends_embedding()) lend_stash_of_embedding();
  }
  run_steps(workload_.stage.steps);
  read_ahead();
}

/// The passes forward that a step leaves to the one before it.
void Builder::fill() {
  trains_ = true;
  run_steps(workload_.stage.fill);
}

void Builder::run_steps(const std::vector<StageStep>& steps) {
  for (const StageStep& step : steps) {
    round_ = step.pass.round;
    const BlockRange& layers = workload_.stage.chunks[step.pass.chunk];
    if (step.kind != StageStep::Kind::run) {
      exchange(step);
    } else if (step.pass.direction == Direction::forward) {
      run_forward(layers, /*train=*/true);
    } else {
      run_backward(layers);
    }
  }
  SPILLWAY_ASSERT(waiting_.empty());
}

/// One round goes through the model, part by part.
void Builder::staged_evaluation() {
  using Kind = StageStep::Kind;
  const Stage& stage = workload_.stage;
  if (workload_.borrows_embedding()) borrow_embedding();
  for (std::uint32_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    const BlockRange& layers = stage.chunks[chunk];
    const Pass pass{Direction::forward, chunk, 0};
    const bool alone = stage.count == 1;
    if (!alone && layers.first > 0) {
      exchange({Kind::receive, pass, (stage.index + stage.count - 1) % stage.count});
    }
    run_forward(layers, /*train=*/false);
    if (!alone && layers.end <= workload_.head_layer()) {
      exchange({Kind::send, pass, (stage.index + 1) % stage.count});
    }
  }
}

}  // namespace spillway::plan
