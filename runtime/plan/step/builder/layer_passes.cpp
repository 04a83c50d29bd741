// Forward and backward of whole layers and of their tiles, and the loss: the visits of the head's
// blocks or, where a head in tiles is tied, of the embedding's.
#include <utility>

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/saved_activations.hpp"
#include "runtime/plan/step/builder/pass_writer.hpp"

namespace spillway::plan {

/// Returns where forward of a layer's block finds its input. `again`: forward is recomputed, and
/// its first block brings the input.
Buffer LayerPasses::input_of(std::uint32_t layer, std::uint32_t m, bool again, bool begins) {
  if (!again) return activations_.passing_boundary(layer - 1, m);
  if (begins) shared_[m] = activations_.returning_boundary(layer - 1, m);
  return shared_[m];
}

/// Declares that forward of a block adds its part to what its layer saves.
void LayerPasses::save_part(OpDraft& forward, std::uint32_t part, const Buffer& kept) const {
  const std::uint32_t layer = workload_.layer_of(forward.op.block);
  const std::uint32_t m = forward.op.micro_batch;
  if (part > 0) forward.read(kept, made_by(ValueKind::saved, layer, part - 1, m));
  forward.write(kept, made_by(ValueKind::saved, layer, part, m));
}

void LayerPasses::visit_forward(std::uint32_t block, MicroBatches range, bool train, bool again) {
  const std::uint32_t layer = workload_.layer_of(block);
  const std::uint32_t part = block - workload_.first_block(layer);
  const bool begins = part == 0;
  const bool ends = part == last_part(layer);
  const Buffer weights = weights_.bring_parameters(block);
  if (block == 0 && messages_.lends_first()) messages_.lend_embedding(weights);
  const bool leaves = train && saved_activations_leave(workload_, placement_, block);
  // Tiles of a layer meet in what it saves, whether that is kept or not.
  const bool saves = workload_.operator_tiles ? layer > 0 : train && placement_.blocks[block].saved;
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    OpDraft forward = draft(OpKind::forward, Lane::gpu, block, m);
    forward.op.flops = workload_.blocks[block].forward_flops;
    forward.read(weights, parameters(block));
    weights_.read_vectors(forward);
    Buffer input;
    if (layer == 0) {
      bring_tokens(forward, !begins);
    } else {
      input = input_of(layer, m, again, begins);
      forward.read(input, boundary(layer - 1, m));
    }
    if (!again) {
      if (begins) shared_[m] = activations_.place_for_output(layer, m);
      forward.write(shared_[m], made_by(ValueKind::boundary, layer, part, m));
    }
    const Buffer kept = leaves ? take_free(PoolKind::saved_activation_slots)
                               : activations_.saved_activations(block, m);
    if (saves) save_part(forward, part, kept);
    forward.write({PoolKind::workspace}, {});
    append(forward);
    if (layer > 0 && ends && !again) give_back(input);
    if (leaves) {
      activations_.take_away(activations_.leaving_saved_activations(block, m), kept);
      give_back(kept);
    }
    if (ends && !again) activations_.pass_boundary(layer, m, shared_[m], train);
  }
  give_back(weights);
}

/// Backward of a tile goes on from what that of the tile behind it has left.
void LayerPasses::meet_tiles(OpDraft& draft, std::uint32_t layer, std::uint32_t part,
                             std::uint32_t parts) const {
  const std::uint32_t m = draft.op.micro_batch;
  const Buffer between{PoolKind::between_tiles, m};
  if (part + 1 < parts) {
    draft.read(between, made_by(ValueKind::between_tiles, layer, part + 1, m));
  }
  draft.write(between, made_by(ValueKind::between_tiles, layer, part, m));
}

/// Declares what backward of a layer's block reads beside the gradient of the layer's output, and
/// what it makes again.
void LayerPasses::read_layer(OpDraft& backward, const Buffer& weights, const Buffer& kept) const {
  const std::uint32_t block = backward.op.block;
  const std::uint32_t layer = workload_.layer_of(block);
  const std::uint32_t m = backward.op.micro_batch;
  backward.read(weights, parameters(block));
  weights_.read_vectors(backward);
  backward.read(shared_[m], boundary(layer - 1, m));
  if (runs_forward_in_backward(layer)) {
    const bool home = boundary_home(workload_, placement_, layer) == Tier::device;
    backward.write(home ? of_micro_batch(PoolKind::boundaries, layer, m)
                        : Buffer{PoolKind::recomputed_boundary},
                   boundary(layer, m));
    backward.write(kept, saved(layer, m));
  } else {
    backward.read(kept, saved(layer, m));
  }
  if (workload_.operator_tiles) {
    meet_tiles(backward, layer, block - workload_.first_block(layer), last_part(layer) + 1);
  }
  gradients_.write_vectors(backward);
}

void LayerPasses::visit_backward(std::uint32_t block, MicroBatches range) {
  const BlockShape& shape = workload_.blocks[block];
  const std::uint32_t layer = workload_.layer_of(block);
  const bool embeds = layer == 0;
  const std::uint32_t part = block - workload_.first_block(layer);
  const bool begins = part == last_part(layer);
  const bool ends = part == 0;
  // The embedding's backward scatters gradients and reads no parameters.
  const Buffer weights = embeds ? Buffer{} : weights_.bring_parameters(block);
  const Buffer accumulator = gradients_.accumulator_of(block, range);
  const bool with_forward = runs_forward_in_backward(layer);
  // Tiles that have been recomputed hold their input already.
  const bool loads = !embeds && begins && (with_forward || !recomputes(layer));
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    OpDraft backward = draft(OpKind::backward, Lane::gpu, block, m);
    backward.op.flops = shape.backward_flops + (with_forward ? shape.forward_flops : 0);
    const Buffer kept = embeds ? Buffer{} : activations_.returning_saved_activations(block, m);
    if (loads) shared_[m] = activations_.returning_boundary(layer - 1, m);
    const Buffer gradient = activations_.passing_gradient(m);
    if (embeds) {
      backward.read(device_tokens(m), of_pass(ValueKind::tokens, m));
    } else {
      read_layer(backward, weights, kept);
    }
    backward.read(gradient, boundary_gradient(layer, m));
    backward.write(gradient, boundary_gradient(ends && !embeds ? layer - 1 : layer, m));
    gradients_.add_gradient(backward, accumulator);
    backward.write({PoolKind::workspace}, {});
    append(backward);
    if (ends) give_back(embeds ? gradient : shared_[m]);
    if (!embeds) give_back(kept);
  }
  if (!embeds) give_back(weights);
  weights_.gather_ahead(block);
  if (range.last == workload_.micro_batches) gradients_.finish_gradient(block);
}

void LayerPasses::backward_layer(std::uint32_t layer, MicroBatches range) {
  const std::uint32_t first = workload_.first_block(layer);
  const std::uint32_t end = workload_.first_block(layer + 1);
  if (workload_.operator_tiles && recomputes(layer)) {
    for (std::uint32_t block = first; block < end; ++block) {
      if (workload_.blocks[block].feeds_backward) {
        visit_forward(block, range, /*train=*/true, /*again=*/true);
      }
    }
  }
  for (std::uint32_t block = end; block-- > first;) visit_backward(block, range);
}

/// The head's tiles are scanned for the loss, first to last, before they run backward.
void LayerPasses::meet_tiles_of_head(OpDraft& draft, std::uint32_t part, bool train) const {
  const std::uint32_t layer = workload_.head_layer();
  const std::uint32_t m = draft.op.micro_batch;
  const Buffer between{PoolKind::between_tiles, m};
  const BlockRange all = workload_.loss_blocks();
  if (train) {
    const bool is_last = draft.op.block + 1 == all.end;
    if (is_last) draft.read(between, made_by(ValueKind::scanned, layer, part, m));
    return meet_tiles(draft, layer, part, all.end - all.first);
  }
  if (part > 0) draft.read(between, made_by(ValueKind::scanned, layer, part - 1, m));
  draft.write(between, made_by(ValueKind::scanned, layer, part, m));
}

/// Brings what the passes of a block of the loss use. A tied head in tiles runs on blocks that are
/// not its own; another has its vectors besides them.
LayerPasses::LossVisit LayerPasses::begin_loss(std::uint32_t block, MicroBatches range,
                                               HeadPass pass) {
  LossVisit visit{.block = block, .pass = pass};
  visit.is_own = !workload_.tied_blocks().contains(block);
  if (workload_.tied_head && visit.is_own) {
    visit.borrowed = workload_.borrows_embedding() ? Buffer{PoolKind::tied_parameters}
                                                   : weights_.bring_parameters(0);
  }
  visit.weights = weights_.bring_parameters(block);
  if (visit.trains() && visit.is_own) visit.accumulator = gradients_.accumulator_of(block, range);
  return visit;
}

/// Declares the gradients that the op of a loss makes.
void LayerPasses::write_loss_gradients(OpDraft& loss, const LossVisit& visit) {
  const std::uint32_t m = loss.op.micro_batch;
  const bool begins = visit.block + 1 == workload_.loss_blocks().end;
  if (begins) shared_[m] = activations_.place_for_gradient(m);
  loss.write(shared_[m], boundary_gradient(workload_.head_layer() - 1, m));
  if (visit.is_own) gradients_.add_gradient(loss, visit.accumulator);
  if (workload_.tied_head) {
    loss.write(tied_accumulator(visit.tied_block()), tied_gradient(visit.tied_block()));
  }
  gradients_.write_vectors(loss);
}

void LayerPasses::append_loss(const LossVisit& visit, std::uint32_t m, const Buffer& input) {
  const std::uint32_t block = visit.block;
  const bool train = visit.trains();
  OpDraft loss = draft(OpKind::loss, Lane::gpu, block, m);
  loss.op.flops = workload_.loss_flops(block) + (train ? workload_.loss_gradient_flops(block) : 0);
  loss.read(visit.weights, parameters(block));
  if (visit.borrowed) loss.read(*visit.borrowed, parameters(visit.tied_block()));
  weights_.read_vectors(loss);
  loss.read(input, boundary(workload_.head_layer() - 1, m));
  bring_tokens(loss, workload_.runs(0));
  if (workload_.logits_bytes > Bytes{}) {
    loss.write({PoolKind::logits}, of_pass(ValueKind::logits, m));
  } else if (!workload_.operator_tiles || !train) {
    loss.write({PoolKind::device_losses, pass_index(m)}, of_pass(ValueKind::loss, m));
  }
  if (workload_.operator_tiles) {
    meet_tiles_of_head(loss, block - workload_.loss_blocks().first, train);
  }
  if (train) write_loss_gradients(loss, visit);
  loss.write({PoolKind::workspace}, {});
  append(loss);
}

void LayerPasses::visit_loss(std::uint32_t block, MicroBatches range, HeadPass pass) {
  const auto [first, end] = workload_.loss_blocks();
  const LossVisit visit = begin_loss(block, range, pass);
  const bool train = visit.trains();
  const bool ends = train ? block == first : pass == HeadPass::evaluation && block + 1 == end;
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    const Buffer input = activations_.passing_boundary(workload_.head_layer() - 1, m);
    append_loss(visit, m, input);
    if (ends) give_back(input);
    if (ends && train) activations_.pass_gradient(m, shared_[m]);
  }
  if (visit.borrowed) give_back(*visit.borrowed);
  give_back(visit.weights);
  if (!train) return;
  weights_.gather_ahead(block);
  if (visit.is_own && range.last == workload_.micro_batches) gradients_.finish_gradient(block);
}

void LayerPasses::visit_head(MicroBatches range, bool train) {
  const auto [first, end] = workload_.loss_blocks();
  const HeadPass scan = train ? HeadPass::scan : HeadPass::evaluation;
  if (workload_.operator_tiles || !train) {
    for (std::uint32_t block = first; block < end; ++block) visit_loss(block, range, scan);
  }
  if (!train) return;
  for (std::uint32_t block = end; block-- > first;) visit_loss(block, range, HeadPass::gradient);
}

}  // namespace spillway::plan
