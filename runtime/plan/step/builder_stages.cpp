// The step of a stage of a pipeline: passes of rounds in the order of its schedule, and what passes
// between it and its neighbours. The net lane keeps the order of messages, in which nothing waits
// for itself (plan/pipeline/timeline.hpp).
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

void Builder::run_forward(const BlockRange& layers, bool train) {
  const MicroBatches all{0, workload_.micro_batches};
  ahead_until_ = blocks();  // another chunk or round may be next
  const bool update_first = train && round_ == 0;
  const std::uint32_t head = workload_.head_layer();
  for (std::uint32_t layer = layers.first; layer < std::min(layers.end, head); ++layer) {
    forward_layer(layer, all, train, update_first);
  }
  const bool ends = layers.contains(head);
  if (ends && update_first) update_block(workload_.first_block(head));
  if (update_first && layers.first == workload_.stage.chunks.back().first) append_step_commit();
  if (ends) visit_head(all, train);
}

void Builder::run_backward(const BlockRange& layers) {
  const MicroBatches all{0, workload_.micro_batches};
  ahead_until_ = std::max(layers.first, 1U);
  for (std::uint32_t layer = std::min(layers.end, workload_.head_layer());
       layer-- > layers.first;) {
    backward_layer(layer, all);
  }
}

void Builder::append_message(OpKind kind, std::uint32_t peer, std::uint32_t block, std::uint32_t m,
                             Bytes bytes, const Access& what) {
  OpDraft message = draft(kind, Lane::net, block, m);
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
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    const Access activation_of{.buffer = of_micro_batch(PoolKind::boundaries, layer, m),
                               .value = activation(layer, m)};
    const Access gradient_of{.buffer = {PoolKind::boundary_gradients, in_flight(m)},
                             .value = activation_gradient(layer, m)};
    append_message(receives ? OpKind::receive : OpKind::send, step.peer,
                   workload_.first_block(layer), m, workload_.boundary_bytes,
                   forward ? activation_of : gradient_of);
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

void Builder::borrow_embedding() {
  append_message(OpKind::receive, 0, 0, 0,
                 Bytes{workload_.tied_elements.value() * size_of(workload_.compute)},
                 {.buffer = {PoolKind::tied_parameters}, .value = parameters(0)});
}

void Builder::staged_training() {
  trains_ = true;
  if (workload_.borrows_embedding()) borrow_embedding();
  for (const StageStep& step : workload_.stage.steps) {
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
  read_ahead();
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
