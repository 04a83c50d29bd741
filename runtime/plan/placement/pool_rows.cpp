// The buffers of pools that do not belong to blocks.
#include <algorithm>

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/reduction.hpp"

namespace spillway::plan {
namespace {

Row row(std::uint64_t count, Bytes each) {
  return {.first = {}, .count = count, .each = each, .last = {}};
}

/// Returns one for each block that a tied head uses, as large as the largest of them.
Row tied_accumulators(const Workload& w) {
  const BlockRange tied = w.tied_blocks();
  ElementCount largest;
  for (std::uint32_t b = tied.first; b < tied.end; ++b) {
    largest = std::max(largest, w.tied_elements_of(b));
  }
  const bool here = w.runs(0) || w.borrows_embedding();
  return row(here ? (tied.end - tied.first) * w.stage.tied_in_flight : 0,
             bytes_of(largest, DType::fp32));
}

/// Returns the slots through which gradients of whole blocks pass.
Row gradients(const PoolSizes& sizes, const Placement& p, DType dtype) {
  return {.first = bytes_of(sizes.gradient_slot(), dtype),
          .count = p.gradient_slots - 1,
          .each = bytes_of(sizes.narrow_slots().of(p.gradient_slots), dtype),
          .last = bytes_of(vector_elements(sizes.workload()), dtype)};
}

/// Returns those of what a rank gets of the gradients of a round.
Row received_gradients(const PoolSizes& sizes, const Placement& p) {
  const Workload& w = sizes.workload();
  const auto received = [&w](ElementCount slot) {
    return bytes_of(reduction_of(w, slot).got(), w.compute);
  };
  return {.first = received(sizes.gradient_slot()),
          .count = p.gradient_slots - 1,
          .each = received(sizes.narrow_slots().of(p.gradient_slots)),
          .last = {}};
}

/// Returns what a rank of a tensor group has for each micro-batch beside what it adds up.
Row row_of_group(PoolKind pool, const Workload& w) {
  const bool head = pool == PoolKind::vocabulary_scans || pool == PoolKind::gathered_scans;
  const bool here = head ? w.runs(w.head_layer()) : w.shares_tokens();
  const std::uint64_t ranks = w.tensor.count;
  Bytes each = w.summed_bytes;
  if (pool == PoolKind::own_rows) each = w.boundary_bytes;
  if (head) each = w.scan_bytes * (pool == PoolKind::gathered_scans ? ranks : 1);
  return row(here ? w.micro_batches : 0, each);
}

Bytes losses(const Workload& w) {
  return Bytes{sizeof(double) * w.micro_batches * std::uint64_t{w.rounds}};
}

/// Returns all of a rank's `host_leaves`: the leaves of its shards, and behind them the losses.
Bytes sums_of_a_rank(const PoolSizes& sizes) {
  Bytes sums = losses(sizes.workload());
  for (std::uint32_t b = 0; b < sizes.size(); ++b) {
    sums += sizes.block(b).shares[static_cast<std::size_t>(PoolKind::host_leaves)];
  }
  return sums;
}

/// Returns the slots through which gradients pass on their way. `lands`: as in `row_of`.
Row gradient_slots(PoolKind pool, const PoolSizes& sizes, const Placement& p, bool lands) {
  const Workload& w = sizes.workload();
  const bool shared = w.replicas.count > 1;
  switch (pool) {
    case PoolKind::accumulators: return gradients(sizes, p, DType::fp32);
    case PoolKind::rounded_gradients:
      return w.compute == DType::fp32 ? Row{} : gradients(sizes, p, w.compute);
    case PoolKind::gradient_shards: return shared ? received_gradients(sizes, p) : Row{};
    case PoolKind::landing_gradients:
      if (!lands) return {};
      return shared ? received_gradients(sizes, p) : gradients(sizes, p, w.compute);
    default: return {};
  }
}

/// Returns the size of each of the slots of a pool.
Bytes slot_size(PoolKind pool, const PoolSizes& sizes, const Strides& strides) {
  const Workload& w = sizes.workload();
  switch (pool) {
    case PoolKind::parameter_slots: return bytes_of(strides.streamed, w.compute);
    case PoolKind::frozen_slots: return sizes.frozen_slot();
    case PoolKind::parameter_shards: {
      const std::uint32_t parts =
          w.replicas.secondary > 1 ? w.replicas.secondary : w.shards();  // the fewest
      return bytes_of(ElementCount{sizes.gradient_slot().value() / parts}, w.compute);
    }
    case PoolKind::boundary_slots: return w.boundary_bytes;
    case PoolKind::boundary_staging: return in_pages(w.boundary_bytes);
    case PoolKind::saved_activation_slots: return strides.leaving;
    case PoolKind::saved_activation_staging: return in_pages(strides.staged);
    default: return {};
  }
}

/// Returns the buffers of one purpose that all blocks use.
Row shared_row(PoolKind pool, const PoolSizes& sizes, const Placement& p, const Strides& strides) {
  const Workload& w = sizes.workload();
  const std::uint64_t m = w.micro_batches;
  const std::uint64_t in_flight = w.micro_batches_in_flight();
  const std::uint64_t passes = m * w.rounds;
  const Bytes one = w.boundary_bytes;
  const bool shares_slots = p.boundary_slots > 0;
  switch (pool) {
    case PoolKind::resident_frozen: return row(1, w.resident_frozen_bytes);
    case PoolKind::tied_parameters:
      return row(w.borrows_embedding() ? 1 : 0, bytes_of(w.tied_elements, w.compute));
    case PoolKind::tied_accumulators: return tied_accumulators(w);
    case PoolKind::boundary_gradients: return row(shares_slots ? 0 : in_flight, one);
    // Backward writes an output again that nobody reads, and that may have no place here.
    case PoolKind::recomputed_boundary:
      return row(shares_slots && !w.operator_tiles && !w.sums_passes(), one);
    // The blocks of a layer in tiles meet in it, each after all micro-batches of the one before.
    case PoolKind::recomputation_scratch: return row(w.operator_tiles ? m : 1, strides.recomputed);
    case PoolKind::between_tiles: return row(m, w.carried_bytes);
    case PoolKind::own_rows:
    case PoolKind::gathered_rows:
    case PoolKind::gathered_gradients:
    case PoolKind::vocabulary_scans:
    case PoolKind::gathered_scans: return row_of_group(pool, w);
    case PoolKind::workspace: return row(1, w.workspace_bytes);
    case PoolKind::constants: return row(1, w.constant_bytes);
    case PoolKind::device_tokens: return row(in_flight, w.token_bytes);
    case PoolKind::device_losses: return row(passes, Bytes{sizeof(double)});
    case PoolKind::logits: return row(1, w.logits_bytes);
    // The staging buffers also carry state to and from disk at commits and at start.
    case PoolKind::state_staging:
      return row(p.state_slots, slot_bytes(p.format, p.tile_parameters));
    case PoolKind::host_tokens: return row(passes + m * w.stage.begun, w.token_bytes);
    case PoolKind::gathered_leaves:
      return w.replicas.count > 1 ? row(w.replicas.count, sums_of_a_rank(sizes)) : Row{};
    default: return {};
  }
}

/// Whether a run whose passes another framework runs has buffers of the pool.
bool is_of_external(PoolKind pool, const Workload& w) {
  switch (pool) {
    case PoolKind::state_staging: return true;
    case PoolKind::parameter_slots:
    case PoolKind::frozen_slots:
    case PoolKind::resident_frozen: return w.streams_external;
    default: return false;
  }
}

}  // namespace

std::uint32_t slots_of(PoolKind pool, const Workload& workload, const Placement& placement) {
  if (rule_of(pool).layout == PoolLayout::gradient_slots) return placement.gradient_slots;
  switch (pool) {
    case PoolKind::parameter_slots:
    case PoolKind::frozen_slots: return placement.parameter_slots;
    case PoolKind::parameter_shards: return parameter_shard_slots(workload, placement);
    case PoolKind::boundary_slots: return device_boundary_slots(workload, placement);
    case PoolKind::boundary_staging:
      return placement.boundary_slots > 0 ? placement.boundary_staging : 0;
    case PoolKind::saved_activation_slots: return placement.saved_slots;
    case PoolKind::saved_activation_staging: return placement.saved_staging;
    default: return 0;
  }
}

Row row_of(PoolKind pool, const PoolSizes& sizes, const Placement& p, const Strides& strides,
           bool lands) {
  const Workload& w = sizes.workload();
  if (w.external && !is_of_external(pool, w)) return {};
  switch (rule_of(pool).layout) {
    case PoolLayout::slots: return row(slots_of(pool, w, p), slot_size(pool, sizes, strides));
    case PoolLayout::gradient_slots: return gradient_slots(pool, sizes, p, lands);
    case PoolLayout::row: return shared_row(pool, sizes, p, strides);
    // Behind the leaves of all tiles.
    default: return pool == PoolKind::host_leaves ? row(1, losses(w)) : Row{};
  }
}

}  // namespace spillway::plan
