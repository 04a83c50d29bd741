#include "runtime/plan/step/builder/messages.hpp"

namespace spillway::plan {

void Messages::append_message(OpKind kind, std::uint32_t peer, std::uint32_t block, std::uint32_t m,
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
void Messages::exchange(const StageEntry& entry) {
  if (entry.tied) return exchange_tied_gradient(entry);
  const BlockRange& layers = workload_.stage.chunks[entry.pass.chunk];
  const bool receives = entry.kind == StageEntry::Kind::receive;
  const bool forward = entry.pass.direction == Direction::forward;
  const std::uint32_t layer = receives == forward ? layers.first - 1 : layers.end - 1;
  receives ? receive_boundaries(entry, layer) : send_boundaries(entry, layer);
}

/// What a backward will read again leaves the device as soon as it has come.
void Messages::receive_boundaries(const StageEntry& entry, std::uint32_t layer) {
  const Direction direction = entry.pass.direction;
  const bool forward = direction == Direction::forward;
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    const Buffer place =
        forward ? activations_.place_for_output(layer, m) : activations_.place_for_gradient(m);
    append_message(OpKind::receive, entry.peer, workload_.first_block(layer), m,
                   workload_.boundary_bytes,
                   {.buffer = place, .value = passing(direction, layer, m)});
    forward ? activations_.pass_boundary(layer, m, place, step_.trains)
            : activations_.pass_gradient(m, place);
  }
  activations_.put_by(direction, layer);
}

void Messages::send_boundaries(const StageEntry& entry, std::uint32_t layer) {
  const Direction direction = entry.pass.direction;
  const bool forward = direction == Direction::forward;
  activations_.restore_boundary(direction, layer);
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    const Buffer made =
        forward ? activations_.passing_boundary(layer, m) : activations_.passing_gradient(m);
    append_message(OpKind::send, entry.peer, workload_.first_block(layer), m,
                   workload_.boundary_bytes,
                   {.buffer = made, .value = passing(direction, layer, m)});
    give_back(made);
  }
}

/// The head's stage keeps the sums of as many rounds as are on their way; the embedding's adds them
/// in the order of rounds, one at a time.
void Messages::exchange_tied_gradient(const StageEntry& entry) {
  const bool sends = entry.kind == StageEntry::Kind::send;
  append_message(sends ? OpKind::send : OpKind::receive, entry.peer, 0, 0,
                 Bytes{workload_.tied_elements.value() * sizeof(float)},
                 {.buffer = tied_accumulator(0), .value = tied_gradient(0)});
}

/// The first stage lends it before anything else passes between the two.
void Messages::lend_embedding(const Buffer& weights) {
  append_message(OpKind::send, workload_.stage.count - 1, 0, 0,
                 Bytes{workload_.tied_elements.value() * size_of(workload_.compute)},
                 {.buffer = weights, .value = parameters(0)});
}

/// The head runs this step's rounds alone, whose first passes forward another list has.
void Messages::lend_stash_of_embedding() {
  const Buffer weights = weights_.bring_parameters(0);
  lend_embedding(weights);
  give_back(weights);
}

void Messages::borrow_embedding() {
  append_message(OpKind::receive, 0, 0, 0,
                 Bytes{workload_.tied_elements.value() * size_of(workload_.compute)},
                 {.buffer = {PoolKind::tied_parameters}, .value = parameters(0)});
}

}  // namespace spillway::plan
