#include "runtime/plan/placement/saved_activations.hpp"
#include "runtime/plan/step/builder/pass_writer.hpp"
#include "runtime/plan/step/op_traffic.hpp"

namespace spillway::plan {

Access GroupPasses::addend_of(const Access& sum) const {
  Access addend = sum;
  addend.value.extent = Extent::addend;
  if (workload_.shares_tokens()) addend.buffer = between(sum.value.micro_batch);
  return addend;
}

/// Returns the gradient of a norm's output, added up.
Access GroupPasses::norm_gradient(std::uint32_t layer, std::uint32_t m) const {
  return {.buffer = workload_.shares_tokens() ? Buffer{PoolKind::own_rows, m} : between(m),
          .value = {ValueKind::between_tiles, layer, m, step_.round}};
}

Access GroupPasses::gathered_normal(std::uint32_t layer, std::uint32_t m) const {
  return {.buffer = {PoolKind::gathered_rows, m},
          .value = {ValueKind::normal, layer, m, step_.round}};
}

Access GroupPasses::gathered_gradient(std::uint32_t layer, std::uint32_t m) const {
  Value gradient = boundary_gradient(layer, m);
  gradient.extent = Extent::gathered;
  return {.buffer = {PoolKind::gathered_gradients, m}, .value = gradient};
}

void GroupPasses::sum_passes(std::uint32_t block, const Access& sum) {
  const OpKind kind = workload_.shares_tokens() ? OpKind::reduce_scatter : OpKind::all_reduce;
  append_group(kind, block, sum.value.micro_batch,
               pass_sum_traffic(workload_, step_.which.place.tensor_index()), addend_of(sum), sum);
}

/// Writes a rank's own tokens of a norm's output, which all of them gather. `reads`: the pass that
/// reads the result.
void GroupPasses::gather_normal(const OpDraft& reads, const Buffer& input) {
  if (!workload_.shares_tokens()) return;
  const std::uint32_t m = reads.op.micro_batch;
  const std::uint32_t layer = workload_.layer_of(reads.op.block);
  const Access all = gathered_normal(layer, m);
  Access own{.buffer = {PoolKind::own_rows, m}, .value = all.value};
  own.value.extent = Extent::shard;
  OpDraft norm = reads;
  norm.read(input, boundary(layer - 1, m));
  norm.write(own.buffer, own.value);
  norm.write({PoolKind::workspace}, {});
  append(norm);
  append_group(OpKind::all_gather, reads.op.block, m, token_gather_traffic(workload_), own, all);
}

void GroupPasses::gather_gradient(std::uint32_t block, std::uint32_t m) {
  if (!workload_.shares_tokens()) return;
  const std::uint32_t layer = workload_.layer_of(block);
  append_group(OpKind::all_gather, block, m, token_gather_traffic(workload_),
               {.buffer = activations_.passing_gradient(m), .value = boundary_gradient(layer, m)},
               gathered_gradient(layer, m));
}

/// Completes forward of a micro-batch, whose norm's output has been gathered, and adds up what the
/// ranks have made.
void GroupPasses::append_forward(OpDraft forward, bool train) {
  const std::uint32_t block = forward.op.block;
  const std::uint32_t m = forward.op.micro_batch;
  const std::uint32_t layer = workload_.layer_of(block);
  forward.op.flops = workload_.blocks[block].forward_flops;
  Buffer input;
  if (layer == 0) {
    bring_tokens(forward, /*brought=*/false);
  } else {
    input = activations_.passing_boundary(layer - 1, m);
    forward.read(input, boundary(layer - 1, m));
    if (workload_.shares_tokens()) forward.read(gathered_normal(layer, m));
  }
  const Buffer output = activations_.place_for_output(layer, m);
  const Access sum{.buffer = output, .value = boundary(layer, m)};
  forward.write(addend_of(sum));
  const bool leaves = train && saved_activations_leave(workload_, placement_, block);
  const Buffer kept = leaves ? take_free(PoolKind::saved_activation_slots)
                             : activations_.saved_activations(block, m);
  if (train && placement_.blocks[block].saved) forward.write(kept, saved(layer, m));
  forward.write({PoolKind::workspace}, {});
  append(forward);
  sum_passes(block, sum);
  if (layer > 0) give_back(input);
  if (leaves) {
    activations_.take_away(activations_.leaving_saved_activations(block, m), kept);
    give_back(kept);
  }
  activations_.pass_boundary(layer, m, output, train);
}

void GroupPasses::visit_forward(std::uint32_t block, MicroBatches range, bool train) {
  const std::uint32_t layer = workload_.layer_of(block);
  const Buffer weights = weights_.bring_parameters(block);
  if (block == 0 && messages_.lends_first()) messages_.lend_embedding(weights);
  const auto begin = [&](std::uint32_t m) {
    OpDraft forward = draft(OpKind::forward, Lane::gpu, block, m);
    forward.read(weights, parameters(block));
    return forward;
  };
  for (std::uint32_t m = range.first; layer > 0 && m < range.last; ++m) {
    gather_normal(begin(m), activations_.passing_boundary(layer - 1, m));
  }
  for (std::uint32_t m = range.first; m < range.last; ++m) append_forward(begin(m), train);
  give_back(weights);
}

/// Writes backward as far as a rank can run it alone: to its addend to the gradient of the norm's
/// output; of the embedding, to the end.
void GroupPasses::begin_backward(std::uint32_t block, std::uint32_t m, const Buffer& weights,
                                 const Buffer& accumulator) {
  const BlockShape& shape = workload_.blocks[block];
  const std::uint32_t layer = workload_.layer_of(block);
  const Buffer gradient = activations_.passing_gradient(m);
  OpDraft backward = draft(OpKind::backward, Lane::gpu, block, m);
  backward.op.flops = shape.backward_flops + (recomputes(layer) ? shape.forward_flops : 0);
  if (workload_.shares_tokens()) {
    backward.read(gathered_gradient(layer, m));
  } else {
    backward.read(gradient, boundary_gradient(layer, m));
  }
  if (layer == 0) {
    backward.read(device_tokens(m), of_pass(ValueKind::tokens, m));
    gradients_.add_gradient(backward, accumulator);
    backward.write({PoolKind::workspace}, {});
    append(backward);
    return give_back(gradient);
  }
  const Buffer kept = activations_.returning_saved_activations(block, m);
  backward.read(weights, parameters(block));
  if (workload_.shares_tokens()) {
    backward.read(gathered_normal(layer, m));
  } else {
    backward.read(shared_[m], boundary(layer - 1, m));
  }
  // What is recomputed ends before the addend to the output, whose sum is there.
  recomputes(layer) ? backward.write(kept, saved(layer, m)) : backward.read(kept, saved(layer, m));
  const Access sum = norm_gradient(layer, m);
  backward.write(addend_of(sum));
  gradients_.add_gradient(backward, accumulator);
  backward.write({PoolKind::workspace}, {});
  append(backward);
  sum_passes(block, sum);
  give_back(kept);
}

/// Writes backward of the norm, whose input has waited for it.
void GroupPasses::finish_backward(std::uint32_t block, std::uint32_t m, const Buffer& weights,
                                  const Buffer& accumulator) {
  const std::uint32_t layer = workload_.layer_of(block);
  const Buffer gradient = activations_.passing_gradient(m);
  OpDraft finish = draft(OpKind::backward, Lane::gpu, block, m);
  finish.read(weights, parameters(block));
  finish.read(shared_[m], boundary(layer - 1, m));
  finish.read(norm_gradient(layer, m));
  finish.read(gradient, boundary_gradient(layer, m));
  finish.write(gradient, boundary_gradient(layer - 1, m));
  gradients_.add_norm_gradient(finish, accumulator);
  finish.write({PoolKind::workspace}, {});
  append(finish);
  give_back(shared_[m]);
}

void GroupPasses::visit_backward(std::uint32_t block, MicroBatches range) {
  const std::uint32_t layer = workload_.layer_of(block);
  const Buffer weights = layer == 0 ? Buffer{} : weights_.bring_parameters(block);
  const Buffer accumulator = gradients_.accumulator_of(block, range);
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    gather_gradient(block, m);
    if (layer == 0) continue;
    shared_[m] = activations_.returning_boundary(layer - 1, m);
    OpDraft reads = draft(OpKind::backward, Lane::gpu, block, m);
    reads.read(weights, parameters(block));
    gather_normal(reads, shared_[m]);
  }
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    begin_backward(block, m, weights, accumulator);
  }
  for (std::uint32_t m = range.first; layer > 0 && m < range.last; ++m) {
    finish_backward(block, m, weights, accumulator);
  }
  if (layer > 0) give_back(weights);
  weights_.gather_ahead(block);
  gradients_.finish_gradient(block);
}

void GroupPasses::backward_layer(std::uint32_t layer, MicroBatches range) {
  visit_backward(workload_.first_block(layer), range);
}

/// Returns what the passes of a head read.
GroupPasses::HeadVisit GroupPasses::begin_head(MicroBatches range, bool train) {
  HeadVisit head{.block = workload_.loss_blocks().first, .weights = {}, .borrowed = {}};
  if (workload_.tied_head) {
    head.borrowed = workload_.borrows_embedding() ? Buffer{PoolKind::tied_parameters}
                                                  : weights_.bring_parameters(0);
  }
  head.weights = weights_.bring_parameters(head.block);
  if (train) head.accumulator = gradients_.accumulator_of(head.block, range);
  return head;
}

OpDraft GroupPasses::draft_of_head(const HeadVisit& head, std::uint32_t m) const {
  OpDraft loss = draft(OpKind::loss, Lane::gpu, head.block, m);
  loss.read(head.weights, parameters(head.block));
  return loss;
}

/// Declares that the op reads a tied projection, and the hidden states that are projected.
void GroupPasses::read_hidden(OpDraft& loss, const HeadVisit& head, std::uint32_t m) const {
  const std::uint32_t layer = workload_.head_layer();
  if (workload_.tied_head) loss.read(head.borrowed, parameters(0));
  if (workload_.shares_tokens()) return loss.read(gathered_normal(layer, m));
  loss.read(activations_.passing_boundary(layer - 1, m), boundary(layer - 1, m));
}

/// Gathers on all ranks what each knows of the tokens from its part of the vocabulary.
void GroupPasses::scan_head(const HeadVisit& head, std::uint32_t m) {
  const Access scans{.buffer = {PoolKind::vocabulary_scans, m},
                     .value = of_pass(ValueKind::scanned, m)};
  const Access all{.buffer = {PoolKind::gathered_scans, m},
                   .value = of_pass(ValueKind::gathered_scans, m)};
  OpDraft scan = draft_of_head(head, m);
  scan.op.flops = workload_.loss_flops(head.block);
  read_hidden(scan, head, m);
  bring_tokens(scan, workload_.runs(0));
  scan.write(scans);
  scan.write({PoolKind::workspace}, {});
  append(scan);
  append_group(OpKind::all_gather, head.block, m,
               workload_.scan_bytes * std::uint64_t{workload_.tensor.count - 1}, scans, all);
}

/// Writes the loss and, in training, the gradients of this rank's part of the projection.
void GroupPasses::loss_of_rank(const HeadVisit& head, std::uint32_t m, bool train) {
  const Access sum = norm_gradient(workload_.head_layer(), m);
  OpDraft loss = draft_of_head(head, m);
  if (train) {
    loss.op.flops = workload_.loss_flops(head.block) + workload_.loss_gradient_flops(head.block);
  }
  read_hidden(loss, head, m);
  loss.read(device_tokens(m), of_pass(ValueKind::tokens, m));
  loss.read({PoolKind::gathered_scans, m}, of_pass(ValueKind::gathered_scans, m));
  loss.write({PoolKind::vocabulary_scans, m}, of_pass(ValueKind::scanned, m));
  loss.write({PoolKind::device_losses, pass_index(m)}, of_pass(ValueKind::loss, m));
  if (train) {
    loss.write(addend_of(sum));
    gradients_.add_gradient(loss, head.accumulator);
    if (workload_.tied_head) loss.write(tied_accumulator(0), tied_gradient(0));
  }
  loss.write({PoolKind::workspace}, {});
  append(loss);
  if (train) sum_passes(head.block, sum);
}

void GroupPasses::finish_head(const HeadVisit& head, std::uint32_t m) {
  const std::uint32_t layer = workload_.head_layer();
  shared_[m] = activations_.place_for_gradient(m);
  OpDraft finish = draft_of_head(head, m);
  finish.read(activations_.passing_boundary(layer - 1, m), boundary(layer - 1, m));
  finish.read(norm_gradient(layer, m));
  finish.write(shared_[m], boundary_gradient(layer - 1, m));
  gradients_.add_norm_gradient(finish, head.accumulator);
  finish.write({PoolKind::workspace}, {});
  append(finish);
}

void GroupPasses::visit_head(MicroBatches range, bool train) {
  const std::uint32_t layer = workload_.head_layer();
  const HeadVisit head = begin_head(range, train);
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    gather_normal(draft_of_head(head, m), activations_.passing_boundary(layer - 1, m));
  }
  for (std::uint32_t m = range.first; m < range.last; ++m) scan_head(head, m);
  for (std::uint32_t m = range.first; m < range.last; ++m) loss_of_rank(head, m, train);
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    if (train) finish_head(head, m);
    give_back(activations_.passing_boundary(layer - 1, m));
    if (train) activations_.pass_gradient(m, shared_[m]);
  }
  if (workload_.tied_head) give_back(head.borrowed);
  give_back(head.weights);
  if (!train) return;
  weights_.gather_ahead(head.block);
  gradients_.finish_gradient(head.block);
}

}  // namespace spillway::plan
