#include "runtime/plan/step/builder/gradients.hpp"

#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/step/op_traffic.hpp"

namespace spillway::plan {

/// The gradient of the vectors is complete with the first layer's.
void Gradients::write_vectors(OpDraft& draft) const {
  if (!workload_.operator_tiles) return;
  draft.write(step_.pools.of_vectors(PoolKind::accumulators), {ValueKind::gradient_sum});
}

Buffer Gradients::accumulator_of(std::uint32_t block, MicroBatches range) {
  if (range.first == 0) accumulator_[block] = step_.pools.take_slot(PoolKind::accumulators, block);
  return accumulator_[block];
}

void Gradients::add_gradient(OpDraft& draft, const Buffer& accumulator) {
  const std::uint32_t m = draft.op.micro_batch;
  if (m > 0) {
    draft.read(accumulator, {ValueKind::gradient_sum, draft.op.block, 0, step_.round, m - 1});
  }
  draft.write(accumulator, {ValueKind::gradient_sum, draft.op.block, 0, step_.round, m});
}

void Gradients::add_norm_gradient(OpDraft& draft, const Buffer& accumulator) {
  const std::uint32_t before = workload_.micro_batches - 1 + draft.op.micro_batch;
  draft.read(accumulator, {ValueKind::gradient_sum, draft.op.block, 0, step_.round, before});
  draft.write(accumulator, {ValueKind::gradient_sum, draft.op.block, 0, step_.round, before + 1});
}

void Gradients::sum_shared(std::uint32_t block) {
  const BlockShape& shape = workload_.blocks[block];
  const Bytes bytes{(shape.parameters - shape.partial_first).value() * sizeof(float)};
  const std::uint32_t last = last_addition(block);
  const auto sum = [&](std::uint32_t part) {
    return Access{.buffer = accumulator_[block],
                  .value = {ValueKind::gradient_sum, block, 0, step_.round, part}};
  };
  append_group(
      OpKind::all_reduce, block, 0,
      tensor_sum_traffic(workload_.tensor, step_.which.place.tensor_index(), bytes, DType::fp32),
      sum(last - 1), sum(last));
}

void Gradients::finish_gradient(std::uint32_t block) {
  if (workload_.sums_shared(block)) sum_shared(block);
  const bool vectors = workload_.operator_tiles && block == 0;
  const Buffer accumulator =
      vectors ? step_.pools.of_vectors(PoolKind::accumulators) : accumulator_[block];
  const bool same = workload_.compute == DType::fp32;
  const Buffer narrow =
      same ? accumulator : step_.pools.take_slot(PoolKind::rounded_gradients, block);
  const bool device = placement_.blocks[block].gradients == Tier::device;
  const bool updates_here = placement_.blocks[block].state == Tier::device;
  const PoolKind totals = updates_here ? PoolKind::device_gradients : PoolKind::device_sums;
  const std::uint32_t last = last_addition(block);
  OpDraft finish = draft(OpKind::round_gradient, Lane::gpu, block);
  finish.op.bytes = rounding_traffic(workload_, placement_, block, step_.round);
  finish.read(accumulator, vectors ? Value{ValueKind::gradient_sum}
                                   : Value{ValueKind::gradient_sum, block, 0, step_.round, last});
  finish.write(accumulator, {});
  if (workload_.tied_blocks().contains(block)) {
    finish.read(tied_accumulator(block), tied_gradient(block));
  }
  finish.write(narrow, {ValueKind::gradient, block, 0, step_.round});
  if (device) {
    if (step_.round > 0) {
      finish.read(tiles_of(totals, block), {ValueKind::total_gradient, block, 0, step_.round - 1});
    }
    finish.write(tiles_of(totals, block), {ValueKind::total_gradient, block, 0, step_.round});
  }
  append(finish);
  if (narrow.pool != accumulator.pool) give_back(accumulator);
  if (!device) return download_gradient(block, narrow);
  give_back(narrow);
  if (step_.round + 1 != workload_.rounds) return;
  updates_here ? append_norms(block, PoolKind::device_gradients) : download_total(block);
}

/// Downloads the sum of all rounds.
void Gradients::download_total(std::uint32_t block) {
  const Value total{ValueKind::total_gradient, block, 0, step_.round};
  OpDraft download = draft(OpKind::copy, Lane::d2h, block);
  download.op.bytes = bytes_of(workload_.blocks[block].padded_parameters, DType::fp32);
  download.read(tiles_of(PoolKind::device_sums, block), total);
  download.write(tiles_of(PoolKind::host_gradients, block), total);
  append(download);
  append_norms(block, PoolKind::host_gradients);
}

void Gradients::download_gradient(std::uint32_t block, const Buffer& made) {
  const Buffer gradient = workload_.replicas.count > 1 ? reduce_gradient(block, made) : made;
  const Buffer home = tiles_of(PoolKind::host_gradients, block);
  const Value total{ValueKind::total_gradient, block, 0, step_.round};
  const bool lands = workload_.sums_gradients();
  OpDraft download = draft(OpKind::copy, Lane::d2h, block);
  download.op.bytes = bytes_of(reduction_of(block).got(), workload_.compute);
  download.read(gradient, gradient_shard(block));
  if (!lands) {
    download.write(home, total);
    append(download);
    give_back(gradient);
    return append_norms(block, PoolKind::host_gradients);
  }
  const Buffer landing = step_.pools.take_slot(PoolKind::landing_gradients, block);
  download.write(landing, gradient_shard(block));
  append(download);
  give_back(gradient);
  OpDraft sum = draft(OpKind::add_gradient, Lane::cpu, block);
  sum.op.bytes = summing_traffic(workload_, block, step_.round);
  sum.read(landing, gradient_shard(block));
  if (step_.round > 0) sum.read(home, {ValueKind::total_gradient, block, 0, step_.round - 1});
  sum.write(home, total);
  append(sum);
  give_back(landing);
  append_norms(block, PoolKind::host_gradients);
}

Buffer Gradients::reduce_gradient(std::uint32_t block, const Buffer& gradient) {
  const Reduction reduction = reduction_of(block);
  const Buffer received =
      reduction.in_place() ? gradient : step_.pools.take_slot(PoolKind::gradient_shards, block);
  OpDraft exchange = draft(reduction.kind, Lane::net, block);
  exchange.op.bytes = reduction_traffic(workload_, block);
  exchange.read(gradient, {ValueKind::gradient, block, 0, step_.round});
  exchange.write(received, gradient_shard(block));
  append(exchange);
  if (!reduction.in_place()) give_back(gradient);
  return received;
}

void Gradients::append_norms(std::uint32_t block, PoolKind gradients) {
  if (step_.round + 1 != workload_.rounds) return;
  const bool device = gradients == PoolKind::device_gradients;
  for (std::uint32_t tile = step_.first_tile[block]; tile < step_.first_tile[block + 1]; ++tile) {
    OpDraft norm = draft_of_tile(OpKind::grad_norm, device ? Lane::gpu : Lane::cpu, tile);
    norm.op.bytes = norm_traffic(workload_, step_.tiles[tile]);
    norm.read({gradients, tile}, {ValueKind::total_gradient, block, 0, step_.round});
    norm.write({device ? PoolKind::device_leaves : PoolKind::host_leaves, tile},
               {ValueKind::norm_leaves, tile});
    append(norm);
  }
}

}  // namespace spillway::plan
