// Backward of the layers and of the embedding.
#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

/// Backward of a tile goes on from what that of the tile behind it has left.
void Builder::meet_tiles(OpDraft& draft, std::uint32_t layer, std::uint32_t part,
                         std::uint32_t parts) const {
  const std::uint32_t m = draft.op.micro_batch;
  const Buffer between{PoolKind::between_tiles, m};
  if (part + 1 < parts) {
    draft.read(between, made_by(ValueKind::between_tiles, layer, part + 1, m));
  }
  draft.write(between, made_by(ValueKind::between_tiles, layer, part, m));
}

void Builder::visit_backward(std::uint32_t block, MicroBatches range) {
  if (workload_.sums_passes()) return visit_backward_of_group(block, range);
  const BlockShape& shape = workload_.blocks[block];
  const std::uint32_t layer = workload_.layer_of(block);
  const bool embeds = layer == 0;
  const std::uint32_t part = block - workload_.first_block(layer);
  const bool begins = part == last_part(layer);
  const bool ends = part == 0;
  // The embedding's backward scatters gradients and reads no parameters.
  const Buffer weights = embeds ? Buffer{} : bring_parameters(block);
  const Buffer accumulator = accumulator_of(block, range);
  const bool with_forward = !workload_.tiled && recomputes(layer);
  // Tiles that have been recomputed hold their input already.
  const bool loads = !embeds && begins && (with_forward || !recomputes(layer));
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    OpDraft backward = draft(OpKind::backward, Lane::gpu, block, m);
    backward.op.flops = shape.backward_flops + (with_forward ? shape.forward_flops : 0);
    const Buffer kept = embeds ? Buffer{} : returning_activations(block, m);
    if (loads) held_[m] = returning_activation(layer - 1, m);
    const Buffer gradient = passing_gradient(m);
    if (embeds) {
      backward.read(device_tokens(m), of_pass(ValueKind::tokens, m));
    } else {
      backward.read(weights, parameters(block));
      read_vectors(backward);
      backward.read(held_[m], activation(layer - 1, m));
      if (with_forward) {
        const bool home = boundary_home(workload_, placement_, layer) == Tier::device;
        backward.write(home ? of_micro_batch(PoolKind::boundaries, layer, m)
                            : Buffer{PoolKind::recomputed_boundary},
                       activation(layer, m));
        backward.write(kept, saved(layer, m));
      } else {
        backward.read(kept, saved(layer, m));
      }
      if (workload_.tiled) meet_tiles(backward, layer, part, last_part(layer) + 1);
      write_vectors(backward);
    }
    backward.read(gradient, activation_gradient(layer, m));
    backward.write(gradient, activation_gradient(ends && !embeds ? layer - 1 : layer, m));
    add_gradient(backward, accumulator);
    backward.write({PoolKind::workspace}, {});
    append(backward);
    if (ends) give_back(embeds ? gradient : held_[m]);
    if (!embeds) give_back(kept);
  }
  if (!embeds) give_back(weights);
  gather_ahead(block);
  if (range.last == workload_.micro_batches) finish_gradient(block);
}

void Builder::backward_layer(std::uint32_t layer, MicroBatches range) {
  const std::uint32_t first = workload_.first_block(layer);
  const std::uint32_t end = workload_.first_block(layer + 1);
  if (workload_.tiled && recomputes(layer)) {
    for (std::uint32_t block = first; block < end; ++block) {
      if (workload_.blocks[block].feeds_backward) {
        visit_forward(block, range, /*train=*/true, /*again=*/true);
      }
    }
  }
  for (std::uint32_t block = end; block-- > first;) visit_backward(block, range);
}

}  // namespace spillway::plan
