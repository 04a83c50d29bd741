#include "runtime/plan/placement/placement.hpp"

#include <algorithm>
#include <array>

#include "runtime/base/error.hpp"
#include "runtime/base/stagger.hpp"
#include "runtime/plan/placement/memory_sums.hpp"
#include "runtime/plan/placement/pools.hpp"

namespace spillway::plan {
namespace {

constexpr std::uint64_t kInt8ScaleGroup = 256;  // values that share one scale

/// Bytes of momentum (or of variance) without their scales.
Bytes moment_values(StateFormat format, ElementCount parameters) {
  switch (format) {
    case StateFormat::fp32:
    case StateFormat::split: return Bytes{4 * parameters.value()};
    case StateFormat::bf16: return Bytes{2 * parameters.value()};
    case StateFormat::int8: return Bytes{parameters.value()};
  }
  return {};
}

Bytes moment_scales(StateFormat format, ElementCount parameters) {
  if (format != StateFormat::int8) return {};
  return Bytes{round_up(parameters.value(), kInt8ScaleGroup) / kInt8ScaleGroup * sizeof(float)};
}

}  // namespace

bool Placement::any_state(Tier tier) const {
  return std::any_of(blocks.begin(), blocks.end(),
                     [tier](const BlockCut& b) { return b.state == tier; });
}

bool Placement::any_output(Tier tier) const {
  return std::any_of(blocks.begin(), blocks.end() - 1,
                     [tier](const BlockCut& b) { return b.output == tier; });
}

bool Placement::any_saved(Tier tier) const {
  return std::any_of(blocks.begin(), blocks.end(),
                     [tier](const BlockCut& b) { return b.saved == tier; });
}

Bytes moment_bytes(StateFormat format, ElementCount parameters) {
  return moment_values(format, parameters) + moment_scales(format, parameters);
}

Bytes state_bytes(StateFormat format, ElementCount parameters) {
  const std::uint64_t master = parameters.value() * (format == StateFormat::fp32 ? 4 : 2);
  const std::uint64_t moment = moment_values(format, parameters).value();
  const std::uint64_t scales = moment_scales(format, parameters).value();
  const std::array sizes{master, moment, moment, 2 * scales};
  return Bytes{round_up(stagger(sizes).end, kPageBytes)};
}

Bytes slot_bytes(StateFormat format, ElementCount parameters) {
  const std::uint64_t narrow = format == StateFormat::fp32 ? 0 : 2 * parameters.value();
  return state_bytes(format, parameters) + Bytes{round_up(narrow, kPageBytes)};
}

Bytes stash_slot_bytes(const Workload& workload, ElementCount parameters) {
  if (!workload.stale.delays_updates) return {};
  return Bytes{round_up(parameters.value() * size_of(workload.compute), kPageBytes)};
}

ElementCount gradient_slot_elements(const Workload& workload) {
  ElementCount largest;
  for (std::size_t b = workload.operator_tiles ? 1 : 0; b < workload.blocks.size(); ++b) {
    largest = std::max(largest, workload.blocks[b].padded_parameters);
  }
  return largest;
}

NarrowSlots::NarrowSlots(const Workload& workload) : sizes_(workload.blocks.size() + 1) {
  const auto& blocks = workload.blocks;
  for (std::size_t distance = 1; distance < blocks.size(); ++distance) {
    ElementCount& narrow = sizes_[distance + 1];
    narrow = sizes_[distance];
    for (std::size_t b = workload.operator_tiles ? 1 : 0; b + distance < blocks.size(); ++b) {
      narrow = std::max(
          narrow, std::min(blocks[b].padded_parameters, blocks[b + distance].padded_parameters));
    }
  }
}

ElementCount vector_elements(const Workload& workload) {
  return workload.operator_tiles ? workload.blocks.front().padded_parameters : ElementCount{};
}

ElementCount largest_block(const Workload& workload) {
  return std::max(gradient_slot_elements(workload), vector_elements(workload));
}

DType waiting_gradient_dtype(const Workload& workload) {
  return workload.sums_gradients() ? DType::fp32 : workload.compute;
}

bool is_streamed(const Workload& workload, const Placement& placement, std::uint32_t block) {
  return workload.gathers() || !placement.blocks[block].resident();
}

bool may_speculate(const Workload& workload, const Placement& placement) {
  const bool one_list = !workload.external && workload.stage.chunks.empty();
  const bool plain = !workload.operator_tiles && placement.order == WorkOrder::layer_major;
  return one_list && plain && workload.grid().ranks() == 1 && placement.commits &&
         placement.all_state_on_disk();
}

bool any_streamed(const Workload& workload, const Placement& placement) {
  return workload.gathers() ||
         std::ranges::any_of(placement.blocks, [](const BlockCut& b) { return !b.resident(); });
}

std::uint32_t parameter_shard_slots(const Workload& workload, const Placement& placement) {
  constexpr std::uint32_t kRefreshed = 2;  // one is uploaded while the other is gathered
  if (workload.shares_updates()) return kRefreshed;
  return workload.gathers() ? placement.parameter_slots : 0;
}

std::uint32_t least_parameter_slots(const Workload& workload, const Placement& placement) {
  const auto last = static_cast<std::uint32_t>(workload.blocks.size() - 1);
  const bool pair = workload.tied_head && !workload.borrows_embedding() &&
                    is_streamed(workload, placement, 0) && is_streamed(workload, placement, last);
  return pair ? 2 : 1;
}

std::vector<MemoryItem> memory_items(const Pools& pools) {
  std::vector<MemoryItem> items;
  for (std::size_t i = 0; i < kPoolCount; ++i) {
    const auto pool = static_cast<PoolKind>(i);
    if (pools[i].bytes() == Bytes{}) continue;
    items.push_back({tier_of(pool), std::string(label_of(pool)), pools[i].bytes()});
  }
  return items;
}

std::vector<MemoryItem> memory_items(const Workload& w, const Placement& p) {
  SPILLWAY_ASSERT(p.blocks.size() == w.blocks.size() && w.blocks.size() >= (w.external ? 1U : 2U));
  return memory_items(make_pools(w, p));
}

Placement lean_placement(const Workload& workload, std::optional<Tier> saved) {
  const BlockCut cut{.parameters = workload.operator_tiles ? Tier::host : Tier::device,
                     .saved = saved,
                     .output = workload.operator_tiles ? Tier::device : Tier::host};
  const std::uint32_t passing = workload.operator_tiles ? 0 : 1;
  Placement placement{.blocks = std::vector(workload.blocks.size(), cut),
                      .parameter_slots = 1,
                      .gradient_slots = 1,
                      .state_slots = 1,
                      .boundary_slots = passing,
                      .commits = false};
  placement.blocks[0].parameters = Tier::device;
  return placement;
}

Bytes total(const std::vector<MemoryItem>& items, Tier tier) {
  Bytes sum;
  for (const MemoryItem& item : items) {
    if (item.tier == tier) sum += item.bytes;
  }
  return sum;
}

Bytes slots_on_disk(const Workload& workload, const Placement& placement) {
  const PoolSizes sizes(workload, placement.format, placement.tile_parameters, placement.commits);
  return Bytes{MemorySums(sizes, placement).share_of(PoolKind::disk_state).value() / 2};
}

std::vector<Tile> make_tiles(const Workload& workload, ElementCount tile_parameters,
                             std::uint32_t replica) {
  SPILLWAY_ASSERT(tile_parameters.value() > 0 && tile_parameters.value() % kLeafParameters == 0);
  std::vector<Tile> tiles;
  for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
    ElementCount first = workload.shard_start(b, replica);
    const ElementCount end = first + workload.shard_elements(b);
    for (; first < end; first += tile_parameters) {
      tiles.push_back({b, first, std::min(tile_parameters, end - first)});
    }
  }
  return tiles;
}

}  // namespace spillway::plan
