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

/// A pass forward reads the output of the layer before its chunk, and one backward the gradient of
/// its chunk's output; it makes the same for the pass that follows it on another stage.
void Builder::exchange(const StageStep& step) {
  const BlockRange& layers = workload_.stage.chunks[step.pass.chunk];
  const bool receives = step.kind == StageStep::Kind::receive;
  const bool forward = step.pass.direction == Direction::forward;
  const std::uint32_t layer = receives == forward ? layers.first - 1 : layers.end - 1;
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    OpDraft message = draft(receives ? OpKind::receive : OpKind::send, Lane::net,
                            workload_.first_block(layer), m);
    message.op.peer = step.peer;
    message.op.bytes = workload_.boundary_bytes;
    const Buffer buffer = forward ? of_micro_batch(PoolKind::boundaries, layer, m)
                                  : Buffer{PoolKind::boundary_gradients, in_flight(m)};
    const Value value = forward ? activation(layer, m) : activation_gradient(layer, m);
    receives ? message.write(buffer, value) : message.read(buffer, value);
    append(message);
  }
}

void Builder::staged_training() {
  trains_ = true;
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
