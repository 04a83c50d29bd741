#include "runtime/plan/placement/pools.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/memory_sums.hpp"

namespace spillway::plan {
namespace {

bool is_of_micro_batches(PoolLayout layout) {
  return layout == PoolLayout::layers || layout == PoolLayout::saved;
}

/// Number of versions of all tiles in a pool of tiles.
std::uint32_t versions_in(PoolLayout layout, const Workload& workload) {
  return layout == PoolLayout::versions ? workload.stale.versions : 1;
}

std::vector<std::uint64_t> distinct(std::vector<std::uint64_t> values) {
  std::ranges::sort(values);
  const auto tail = std::ranges::unique(values);
  values.erase(tail.begin(), tail.end());
  return values;
}

std::uint32_t index_in(const std::vector<std::uint64_t>& sorted, std::uint64_t value) {
  return static_cast<std::uint32_t>(std::ranges::lower_bound(sorted, value) - sorted.begin());
}

/// Whether a run whose passes another framework runs has buffers of the pool.
bool is_in_external(const PoolRule& rule, const Workload& workload) {
  return rule.external == ExternalRuns::all ||
         (rule.external == ExternalRuns::streamed && workload.streams_external);
}

/// Returns the slots through which gradients of whole blocks pass, and behind them that of vectors.
Row gradient_row(const PoolRule& rule, SizedBuffer buffer, const Placement& placement) {
  const auto bytes = [&](ElementCount elements) {
    buffer.elements = elements;
    return rule.size(buffer);
  };
  const Bytes first = bytes(buffer.sizes.gradient_slot());
  if (first == Bytes{}) return {};
  return {.first = first,
          .count = placement.gradient_slots - 1,
          .each = bytes(buffer.sizes.narrow_slots().of(placement.gradient_slots)),
          .last = bytes(vector_elements(buffer.sizes.workload()))};
}

class PoolMaker {
 public:
  PoolMaker(const Workload& workload, const Placement& placement)
      : placement_(placement),
        sizes_(workload, placement.format, placement.tile_parameters, placement.commits),
        sums_(sizes_, placement),
        tiles_(make_tiles(workload, placement.tile_parameters, /*replica=*/0)) {}

  Pools make() {
    for (const PoolKind pool : block_pools()) {
      switch (rule_of(pool).layout) {
        case PoolLayout::layers:
        case PoolLayout::saved: lay_micro_batches(pool); break;
        case PoolLayout::blocks: lay_blocks(pool); break;
        default: lay_tiles(pool);
      }
      SPILLWAY_ASSERT(at(pool).bytes() == sums_.share_of(pool));
    }
    const Strides strides = sums_.strides();
    for (std::size_t p = 0; p < kPoolCount; ++p) {
      lay_row(pools_[p], row_of(static_cast<PoolKind>(p), sizes_, placement_, strides));
    }
    return std::move(pools_);
  }

 private:
  Pool& at(PoolKind pool) { return pools_[static_cast<std::size_t>(pool)]; }

  void lay_blocks(PoolKind pool) {
    for (std::uint32_t b = 0; b < sizes_.size(); ++b) {
      const bool here = sizes_.has_share(pool, b, placement_.blocks[b]);
      lay(at(pool), here ? sizes_.buffer_bytes(pool, b, {}) : Bytes{});
    }
  }

  void lay_tiles(PoolKind pool) {
    const std::uint32_t versions = versions_in(rule_of(pool).layout, sizes_.workload());
    for (std::uint32_t version = 0; version < versions; ++version) {
      for (const Tile& tile : tiles_) {
        const bool here = sizes_.has_share(pool, tile.block, placement_.blocks[tile.block]);
        lay(at(pool), here ? sizes_.buffer_bytes(pool, tile.block, tile.count) : Bytes{});
      }
    }
  }

  void lay_micro_batches(PoolKind pool) {
    const Workload& w = sizes_.workload();
    for (std::uint32_t b = 0; b < w.blocks.size(); ++b) {
      const bool by_layer = rule_of(pool).layout == PoolLayout::layers;
      if (by_layer && w.first_block(w.layer_of(b)) != b) continue;
      const bool here = sizes_.has_share(pool, b, placement_.blocks[b]);
      const Bytes each = here ? sizes_.buffer_bytes(pool, b, {}) : Bytes{};
      for (std::uint32_t m = 0; m < w.micro_batches_in_flight(); ++m) lay(at(pool), each);
    }
  }

  static void lay_row(Pool& pool, const Row& row) {
    if (row.first > Bytes{}) lay(pool, row.first);
    for (std::uint64_t i = 0; i < row.count; ++i) lay(pool, row.each);
    if (row.last > Bytes{}) lay(pool, row.last);
  }

  static void lay(Pool& pool, Bytes bytes) {
    pool.ends.push_back(pool.bytes().value() + bytes.value());
  }

  const Placement& placement_;
  PoolSizes sizes_;
  MemorySums sums_;
  std::vector<Tile> tiles_;
  Pools pools_;
};

}  // namespace

PoolSizes::PoolSizes(const Workload& workload, StateFormat format, ElementCount tile_parameters,
                     bool commits)
    : workload_(&workload),
      format_(format),
      tile_parameters_(tile_parameters),
      commits_(commits),
      blocks_(workload.blocks.size()),
      gradient_slot_(gradient_slot_elements(workload)),
      narrow_slots_(workload) {
  for (std::uint32_t b = 0; b < size(); ++b) {
    padded_sizes_.push_back(workload.blocks[b].padded_parameters.value());
    frozen_slot_ = std::max(frozen_slot_, workload.blocks[b].frozen_bytes);
    saved_sizes_.push_back(saved(b).value());
  }
  padded_sizes_ = distinct(std::move(padded_sizes_));
  saved_sizes_ = distinct(std::move(saved_sizes_));
  for (std::uint32_t b = 0; b < size(); ++b) {
    Block& block = blocks_[b];
    for (const PoolKind pool : block_pools()) {
      block.shares[static_cast<std::size_t>(pool)] = share(pool, b);
    }
    const std::uint32_t layer = workload.layer_of(b);
    block.starts_layer = layer < workload.head_layer() && workload.first_block(layer) == b;
    block.output_waits = workload.output_waits(layer);
    block.padded_index = index_in(padded_sizes_, workload.blocks[b].padded_parameters.value());
    block.saved_index = index_in(saved_sizes_, saved(b).value());
  }
}

Bytes PoolSizes::saved(std::uint32_t block) const {
  const bool head = workload_->layer_of(block) == workload_->head_layer();
  return head ? Bytes{} : workload_->blocks[block].saved_bytes;
}

/// Returns the size of all buffers in a block's share.
Bytes PoolSizes::share(PoolKind pool, std::uint32_t block) const {
  const PoolLayout layout = rule_of(pool).layout;
  if (is_of_micro_batches(layout)) {
    return buffer_bytes(pool, block, {}) * std::uint64_t{workload_->micro_batches_in_flight()};
  }
  if (layout == PoolLayout::blocks) return buffer_bytes(pool, block, {});
  const ElementCount shard = workload_->shard_elements(block);
  const ElementCount rest{shard.value() % tile_parameters_.value()};
  Bytes sum = buffer_bytes(pool, block, tile_parameters_) * (shard / tile_parameters_);
  if (rest > ElementCount{}) sum += buffer_bytes(pool, block, rest);
  return sum * std::uint64_t{versions_in(layout, *workload_)};
}

std::uint32_t slots_of(PoolKind pool, const Workload& workload, const Placement& placement) {
  return static_cast<std::uint32_t>(
      std::get<PoolRule::Count>(rule_of(pool).owner)(workload, placement));
}

Row row_of(PoolKind pool, const PoolSizes& sizes, const Placement& p, const Strides& strides) {
  const PoolRule& rule = rule_of(pool);
  const Workload& w = sizes.workload();
  if (w.external && !is_in_external(rule, w)) return {};
  const SizedBuffer buffer{.sizes = sizes, .strides = strides};
  const auto* count = std::get_if<PoolRule::Count>(&rule.owner);
  if (count == nullptr) return rule.behind == nullptr ? Row{} : Row{.last = rule.behind(buffer)};
  if (rule.layout == PoolLayout::gradient_slots) return gradient_row(rule, buffer, p);
  return {.count = (*count)(w, p), .each = rule.size(buffer)};
}

Pools make_pools(const Workload& workload, const Placement& placement) {
  return PoolMaker(workload, placement).make();
}

}  // namespace spillway::plan
