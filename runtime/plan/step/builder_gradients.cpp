// The way of a gradient from the sum over micro-batches to the update's tier, and its norm.
#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/plan/predict/op_traffic.hpp"
#include "runtime/plan/step/builder.hpp"

namespace spillway::plan {

/// Every op of tiles adds to the gradient of the vectors, which is complete with the first layer's.
void Builder::write_vectors(OpDraft& draft) const {
  if (!workload_.tiled) return;
  draft.write(of_vectors(PoolKind::accumulators), {ValueKind::gradient_sum});
}

Buffer Builder::accumulator_of(std::uint32_t block, MicroBatches range) {
  if (range.first == 0) accumulator_[block] = take_slot(PoolKind::accumulators, block);
  return accumulator_[block];
}

void Builder::add_gradient(OpDraft& draft, const Buffer& accumulator) {
  const std::uint32_t m = draft.op.micro_batch;
  if (m > 0) {
    draft.read(accumulator, {ValueKind::gradient_sum, draft.op.block, 0, round_, m - 1});
  }
  draft.write(accumulator, {ValueKind::gradient_sum, draft.op.block, 0, round_, m});
}

/// Takes a gradient slot that is as large as the block. Where each block has one, the first is left
/// to the only block that fits no other.
Buffer Builder::take_slot(PoolKind pool, std::uint32_t block) {
  if (workload_.tiled && block == 0) return of_vectors(pool);
  auto& free = free_[static_cast<std::size_t>(pool)];
  const std::size_t slots = std::min<std::size_t>(placement_.gradient_slots, blocks());
  const bool wide = workload_.blocks[block].padded_parameters > narrow_slots_[slots];
  const bool leaves_first = placement_.order == WorkOrder::micro_batch_major;
  auto slot = std::ranges::find_if(free, [&](std::uint32_t i) {
    return wide ? i == 0 : i > 0 || !leaves_first;  // those free for longest come first
  });
  if (slot == free.end() && !wide) slot = free.begin();
  SPILLWAY_ASSERT(slot != free.end());
  const Buffer buffer{pool, *slot};
  free.erase(slot);
  return buffer;
}

/// The round's gradient of a block is complete in its accumulator: rounds it and moves it on.
void Builder::finish_gradient(std::uint32_t block) {
  if (workload_.sums_shared(block)) sum_shared(block);
  const bool vectors = workload_.tiled && block == 0;
  const Buffer accumulator = vectors ? of_vectors(PoolKind::accumulators) : accumulator_[block];
  const bool same = workload_.compute == DType::fp32;
  const Buffer narrow = same ? accumulator : take_slot(PoolKind::rounded_gradients, block);
  const bool device = placement_.blocks[block].gradients == Tier::device;
  const bool updates_here = placement_.blocks[block].state == Tier::device;
  const PoolKind totals = updates_here ? PoolKind::device_gradients : PoolKind::device_sums;
  const std::uint32_t last = last_gradient_part(block);
  OpDraft finish = draft(OpKind::accumulate, Lane::gpu, block);
  finish.op.bytes = rounding_traffic(workload_, placement_, block, round_);
  finish.read(accumulator, vectors ? Value{ValueKind::gradient_sum}
                                   : Value{ValueKind::gradient_sum, block, 0, round_, last});
  finish.write(accumulator, {});
  if (workload_.tied_blocks().contains(block)) {
    finish.read(tied_accumulator(block), tied_gradient(block));
  }
  finish.write(narrow, {ValueKind::gradient, block, 0, round_});
  if (device) {
    if (round_ > 0) {
      finish.read(tiles_of(totals, block), {ValueKind::total_gradient, block, 0, round_ - 1});
    }
    finish.write(tiles_of(totals, block), {ValueKind::total_gradient, block, 0, round_});
  }
  append(finish);
  if (narrow.pool != accumulator.pool) give_back(accumulator);
  if (!device) return download_gradient(block, narrow);
  give_back(narrow);
  if (round_ + 1 != workload_.rounds) return;
  if (updates_here) return append_norms(block, PoolKind::device_gradients);
  OpDraft download = draft(OpKind::copy, Lane::d2h, block);
  download.op.bytes = Bytes{workload_.blocks[block].padded_parameters.value() * sizeof(float)};
  download.read(tiles_of(totals, block), {ValueKind::total_gradient, block, 0, round_});
  download.write(tiles_of(PoolKind::host_gradients, block),
                 {ValueKind::total_gradient, block, 0, round_});
  append(download);
  append_norms(block, PoolKind::host_gradients);
}

/// Brings a round's gradient to the host, or what this rank gets of it; several are summed there.
void Builder::download_gradient(std::uint32_t block, const Buffer& made) {
  const Buffer gradient = workload_.ranks.count > 1 ? reduce_gradient(block, made) : made;
  const Buffer home = tiles_of(PoolKind::host_gradients, block);
  const Value total{ValueKind::total_gradient, block, 0, round_};
  const bool lands = workload_.sums_gradients();
  OpDraft download = draft(OpKind::copy, Lane::d2h, block);
  download.op.bytes = shard_bytes(block) * std::uint64_t{workload_.gradients_of_round()};
  download.read(gradient, gradient_shard(block));
  if (!lands) {
    download.write(home, total);
    append(download);
    give_back(gradient);
    return append_norms(block, PoolKind::host_gradients);
  }
  const Buffer landing = take_slot(PoolKind::landing_gradients, block);
  download.write(landing, gradient_shard(block));
  append(download);
  give_back(gradient);
  OpDraft sum = draft(OpKind::accumulate, Lane::cpu, block);
  sum.op.bytes = summing_traffic(workload_, block, round_);
  sum.read(landing, gradient_shard(block));
  if (round_ > 0) sum.read(home, {ValueKind::total_gradient, block, 0, round_ - 1});
  sum.write(home, total);
  append(sum);
  give_back(landing);
  append_norms(block, PoolKind::host_gradients);
}

void Builder::append_norms(std::uint32_t block, PoolKind gradients) {
  if (round_ + 1 != workload_.rounds) return;
  const bool device = gradients == PoolKind::device_gradients;
  for (std::uint32_t tile = first_tile_[block]; tile < first_tile_[block + 1]; ++tile) {
    OpDraft norm = draft_of_tile(OpKind::grad_norm, device ? Lane::gpu : Lane::cpu, tile);
    norm.op.bytes = norm_traffic(workload_, tiles_[tile]);
    norm.read({gradients, tile}, {ValueKind::total_gradient, block, 0, round_});
    norm.write({device ? PoolKind::device_leaves : PoolKind::host_sums, tile},
               {ValueKind::norm_leaves, tile});
    append(norm);
  }
}

}  // namespace spillway::plan
