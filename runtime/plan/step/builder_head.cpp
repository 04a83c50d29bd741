// The loss and its gradient: the visits of the head's blocks or, where a head in tiles is tied, of
// the embedding's.
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

/// The head's tiles are scanned for the loss, first to last, before they run backward.
void Builder::meet_tiles_of_head(OpDraft& draft, std::uint32_t part, bool train) const {
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

/// `held`: the embedding has brought them to the device.
void Builder::bring_tokens(OpDraft& draft, bool held) const {
  const std::uint32_t m = draft.op.micro_batch;
  if (held) return draft.read(device_tokens(m), of_pass(ValueKind::tokens, m));
  draft.read({PoolKind::host_tokens, pass_index(m)}, of_pass(ValueKind::tokens, m));
  draft.write(device_tokens(m), of_pass(ValueKind::tokens, m));
}

void Builder::visit_loss(std::uint32_t block, MicroBatches range, LossPass pass) {
  const std::uint32_t layer = workload_.head_layer();
  const auto [first, end] = workload_.loss_blocks();
  const std::uint32_t part = block - first;
  const bool train = pass == LossPass::gradient;
  const bool ends = train ? block == first : pass == LossPass::evaluation && block + 1 == end;
  const BlockRange tied = workload_.tied_blocks();
  // A tied head in tiles runs on blocks that are not its own; another has its vectors besides them.
  const bool is_own = !tied.contains(block);
  const std::uint32_t tied_block = is_own ? 0 : block;
  const bool borrows = workload_.tied_head && is_own;
  Buffer borrowed;
  if (borrows) {
    const bool elsewhere = workload_.borrows_embedding();
    borrowed = elsewhere ? Buffer{PoolKind::tied_parameters} : bring_parameters(tied_block);
  }
  const Buffer weights = bring_parameters(block);
  Buffer accumulator;
  if (train && is_own) accumulator = accumulator_of(block, range);
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    OpDraft loss = draft(OpKind::loss, Lane::gpu, block, m);
    loss.op.flops =
        workload_.loss_flops(block) + (train ? workload_.loss_gradient_flops(block) : 0);
    loss.read(weights, parameters(block));
    if (borrows) loss.read(borrowed, parameters(tied_block));
    read_vectors(loss);
    const Buffer input = passing_activation(layer - 1, m);
    loss.read(input, activation(layer - 1, m));
    bring_tokens(loss, workload_.runs(0));
    if (workload_.logits_bytes > Bytes{}) {
      loss.write({PoolKind::logits}, of_pass(ValueKind::logits, m));
    } else if (!workload_.tiled || !train) {
      loss.write({PoolKind::device_losses, pass_index(m)}, of_pass(ValueKind::loss, m));
    }
    if (workload_.tiled) meet_tiles_of_head(loss, part, train);
    if (train) {
      if (block + 1 == end) held_[m] = place_for_gradient(m);
      loss.write(held_[m], activation_gradient(layer - 1, m));
      if (is_own) add_gradient(loss, accumulator);
      if (workload_.tied_head) {
        loss.write(tied_accumulator(tied_block), tied_gradient(tied_block));
      }
      write_vectors(loss);
    }
    loss.write({PoolKind::workspace}, {});
    append(loss);
    if (ends) give_back(input);
    if (ends && train) pass_gradient(m, held_[m]);
  }
  if (borrows) give_back(borrowed);
  give_back(weights);
  if (train) gather_ahead(block);
  if (train && is_own && range.last == workload_.micro_batches) finish_gradient(block);
}

void Builder::visit_head(MicroBatches range, bool train) {
  if (workload_.sums_passes()) return visit_head_of_group(range, train);
  const auto [first, end] = workload_.loss_blocks();
  const LossPass scan = train ? LossPass::scan : LossPass::evaluation;
  if (workload_.tiled || !train) {
    for (std::uint32_t block = first; block < end; ++block) visit_loss(block, range, scan);
  }
  if (!train) return;
  for (std::uint32_t block = end; block-- > first;) visit_loss(block, range, LossPass::gradient);
}

}  // namespace spillway::plan
