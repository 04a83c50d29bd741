#include "runtime/plan/memory_sums.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

/// Of all tiles of a block; `bytes` of a tile depend on its size alone.
Bytes sum_of_tiles(StateFormat format, ElementCount padded, ElementCount tile,
                   Bytes (*bytes)(StateFormat, ElementCount)) {
  Bytes sum = bytes(format, tile) * (padded / tile);
  const std::uint64_t rest = padded.value() % tile.value();
  if (rest != 0) sum += bytes(format, ElementCount{rest});
  return sum;
}

std::vector<std::uint64_t> distinct(std::vector<std::uint64_t> values) {
  std::ranges::sort(values);
  const auto tail = std::ranges::unique(values);
  values.erase(tail.begin(), tail.end());
  return values;
}

std::uint32_t rank_in(const std::vector<std::uint64_t>& sorted, std::uint64_t value) {
  return static_cast<std::uint32_t>(std::ranges::lower_bound(sorted, value) - sorted.begin());
}

}  // namespace

BlockSizes::BlockSizes(const Workload& workload, StateFormat format, ElementCount tile_parameters)
    : gradient_slot(gradient_slot_elements(workload)) {
  for (const BlockShape& shape : workload.blocks) {
    const bool head = &shape == &workload.blocks.back();
    const ElementCount elements = shape.padded_parameters;
    padded += elements;
    blocks.push_back({.padded = elements,
                      .state = sum_of_tiles(format, elements, tile_parameters, state_bytes),
                      .slots = sum_of_tiles(format, elements, tile_parameters, slot_bytes),
                      .saved = head ? Bytes{} : shape.saved_bytes,
                      .padded_rank = 0,
                      .saved_rank = 0});
    padded_sizes.push_back(elements.value());
    saved_sizes.push_back(blocks.back().saved.value());
  }
  padded_sizes = distinct(std::move(padded_sizes));
  saved_sizes = distinct(std::move(saved_sizes));
  for (Block& block : blocks) {
    block.padded_rank = rank_in(padded_sizes, block.padded.value());
    block.saved_rank = rank_in(saved_sizes, block.saved.value());
  }
}

void RankCounts::add(std::uint32_t rank) {
  ++counts_[rank];
  end_ = std::max<std::size_t>(end_, rank + 1U);
}

void RankCounts::remove(std::uint32_t rank) {
  SPILLWAY_ASSERT(counts_[rank] > 0);
  --counts_[rank];
  while (end_ > 0 && counts_[end_ - 1] == 0) --end_;
}

MemorySums::MemorySums(const BlockSizes& sizes)
    : sizes_(&sizes),
      streamed_(sizes.padded_sizes.size()),
      recomputed_(sizes.saved_sizes.size()),
      leaving_(sizes.saved_sizes.size()) {
  for (const BlockSizes::Block& block : sizes.blocks) all_slots_ += block.slots;
}

MemorySums::MemorySums(const BlockSizes& sizes, const Placement& placement) : MemorySums(sizes) {
  SPILLWAY_ASSERT(placement.blocks.size() == sizes.blocks.size());
  for (std::uint32_t b = 0; b < placement.blocks.size(); ++b) add(b, placement.blocks[b]);
}

template <class Sum, class Count>
void MemorySums::apply(std::uint32_t block, const BlockPlacement& place, const Sum& sum,
                       const Count& count) {
  const BlockSizes::Block& size = sizes_->blocks[block];
  if (place.resident) {
    sum(resident_, size.padded);
  } else {
    count(streamed_, size.padded_rank);
  }
  sum(state_[index_of(place.state)], size.state);
  if (place.state == Tier::nvme) sum(nvme_slots_, size.slots);
  if (place.state == Tier::device) {
    sum(updated_on_device_, size.padded);
  } else if (place.sums) {
    sum(summed_on_device_, size.padded);
  }
  const std::size_t head = sizes_->blocks.size() - 1;
  if (block == head) return;  // its two passes are one op, and nothing leads away from it
  sum(homes_[static_cast<std::size_t>(activation_home(place.activations, block + 1 == head))],
      std::uint64_t{1});
  if (place.offload && size.saved > Bytes{}) {
    sum(offloaded_, size.saved);
    count(leaving_, size.saved_rank);
  } else if (place.keep) {
    sum(kept_, size.saved);
  } else {
    count(recomputed_, size.saved_rank);
  }
}

void MemorySums::add(std::uint32_t block, const BlockPlacement& place) {
  apply(
      block, place, [](auto& quantity, auto amount) { quantity += amount; },
      [](RankCounts& counts, std::uint32_t rank) { counts.add(rank); });
}

void MemorySums::remove(std::uint32_t block, const BlockPlacement& place) {
  apply(
      block, place, [](auto& quantity, auto amount) { quantity -= amount; },
      [](RankCounts& counts, std::uint32_t rank) { counts.remove(rank); });
}

}  // namespace spillway::plan
