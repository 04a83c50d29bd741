#include "runtime/plan/placement.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/plan/boundaries.hpp"
#include "runtime/plan/internals.hpp"
#include "runtime/plan/theory.hpp"

namespace spillway::plan {
namespace {

Bytes elements(ElementCount count, DType dtype) { return Bytes{count.value() * size_of(dtype)}; }

class Items {
 public:
  void add(Tier tier, std::string what, Bytes bytes) {
    if (bytes > Bytes{}) items_.push_back({tier, std::move(what), bytes});
  }
  std::vector<MemoryItem> take() { return std::move(items_); }

 private:
  std::vector<MemoryItem> items_;
};

/// Of all tiles of the blocks that `select` chooses; `bytes` of a tile depend on its size alone.
template <class Select, class Of>
Bytes sum_of_tiles(const Workload& workload, const Placement& placement, Select select, Of bytes) {
  const std::uint64_t tile = placement.tile_parameters.value();
  const Bytes whole = bytes(placement.format, placement.tile_parameters);
  Bytes sum;
  for (std::size_t b = 0; b < workload.blocks.size(); ++b) {
    if (!select(placement.blocks[b])) continue;
    const std::uint64_t padded = workload.blocks[b].padded_parameters.value();
    sum += whole * (padded / tile);
    if (padded % tile != 0) sum += bytes(placement.format, ElementCount{padded % tile});
  }
  return sum;
}

Bytes tier_state(const Workload& workload, const Placement& placement, Tier tier) {
  const auto here = [tier](const BlockPlacement& b) { return b.state == tier; };
  return sum_of_tiles(workload, placement, here, state_bytes);
}

/// Parameters of the blocks for which `select` holds.
template <class Select>
ElementCount count_if(const Workload& workload, const Placement& placement, Select select) {
  ElementCount sum;
  for (std::size_t b = 0; b < workload.blocks.size(); ++b) {
    if (select(placement.blocks[b])) sum += workload.blocks[b].padded_parameters;
  }
  return sum;
}

ElementCount padded_total(const Workload& workload) {
  ElementCount sum;
  for (const BlockShape& block : workload.blocks) sum += block.padded_parameters;
  return sum;
}

void add_boundaries(const Workload& w, const Placement& p, Items& items) {
  const std::uint64_t micro_batches = w.micro_batches;
  const auto activations = [&](BoundaryHome home) {
    if (w.tiled) return home == BoundaryHome::device ? micro_batches * (w.layers() - 1) : 0;
    return micro_batches * blocks_with(p, home);
  };
  const Bytes one = w.boundary_bytes;
  items.add(Tier::device, "boundary activations", one * activations(BoundaryHome::device));
  if (p.boundary_slots == 0) {
    items.add(Tier::device, "boundary gradients", one * micro_batches);
    return;
  }
  items.add(Tier::device, "boundary slots", one * std::uint64_t{device_boundary_slots(w, p)});
  // Backward writes an output again that nobody reads, and that may have no home here.
  items.add(Tier::device, "recomputed boundary", one);
  items.add(Tier::host, "boundary activations", one * activations(BoundaryHome::host));
  items.add(Tier::host, "parked boundaries", one * std::uint64_t{parked_micro_batches(w, p)});
  items.add(Tier::host, "boundary staging",
            boundary_disk_bytes(w) * std::uint64_t{p.boundary_staging});
  items.add(Tier::nvme, "boundary activations",
            boundary_disk_bytes(w) * activations(BoundaryHome::nvme));
}

void add_activations(const Workload& w, const Placement& p, Items& items) {
  const std::uint64_t micro_batches = w.micro_batches;
  Bytes kept;
  Bytes scratch;
  for (std::uint32_t b = 0; b + 1 < w.blocks.size(); ++b) {
    if (internals_leave(w, p, b)) continue;
    if (p.blocks[b].keep) {
      kept += w.blocks[b].saved_bytes * micro_batches;
    } else {
      scratch = std::max(scratch, w.blocks[b].saved_bytes);
    }
  }
  add_boundaries(w, p, items);
  // The blocks of a layer in tiles meet in it, each after all micro-batches of the one before.
  if (w.tiled) scratch = scratch * micro_batches;
  items.add(Tier::device, "kept activations", kept);
  items.add(Tier::device, "kept activation slots",
            saved_slot_bytes(w, p) * std::uint64_t{p.saved_slots});
  items.add(Tier::device, "recomputation scratch", scratch);
  items.add(Tier::device, "between tiles", w.carried_bytes * micro_batches);
  items.add(Tier::device, "operator workspace", w.workspace_bytes);
  items.add(Tier::device, "rotary tables", w.constant_bytes);
  items.add(Tier::device, "token ids", w.token_bytes * micro_batches);
  items.add(Tier::device, "loss sums", Bytes{sizeof(double) * micro_batches * w.rounds});
  items.add(Tier::host, "kept activations", offloaded_internals(w, p) * micro_batches);
}

void add_gradients(const Workload& w, const Placement& p, Items& items) {
  const ElementCount slots{gradient_slot_elements(w).value() * p.gradient_slots +
                           vector_elements(w).value()};
  items.add(Tier::device, "gradient accumulators", elements(slots, DType::fp32));
  if (w.compute != DType::fp32) {
    items.add(Tier::device, "rounded gradients", elements(slots, w.compute));
  }
  if (w.tied_head) {
    items.add(Tier::device, "tied accumulator", elements(w.tied_elements, DType::fp32));
  }
  const DType waiting = waiting_gradient_dtype(w);
  const auto updated_here = [](const BlockPlacement& b) { return b.state == Tier::device; };
  const auto updated_on_host = [](const BlockPlacement& b) { return b.state != Tier::device; };
  const auto summed_here = [](const BlockPlacement& b) {
    return b.state != Tier::device && b.sums;
  };
  const ElementCount device = count_if(w, p, updated_here);
  items.add(Tier::device, "waiting gradients", elements(device, waiting));
  items.add(Tier::device, "gradient norm leaves",
            Bytes{device.value() / kLeafParameters * sizeof(double)});
  const ElementCount host = count_if(w, p, updated_on_host);
  items.add(Tier::host, "waiting gradients", elements(host, waiting));
  if (w.rounds == 1) return;
  const ElementCount summed = count_if(w, p, summed_here);
  items.add(Tier::device, "sums of rounds", elements(summed, waiting));
  if (host > summed) items.add(Tier::host, "landing gradients", elements(slots, w.compute));
}

}  // namespace

bool Placement::any_state(Tier tier) const {
  return std::any_of(blocks.begin(), blocks.end(),
                     [tier](const BlockPlacement& b) { return b.state == tier; });
}

bool Placement::any_activations(Tier tier) const {
  return std::any_of(blocks.begin(), blocks.end() - 1,
                     [tier](const BlockPlacement& b) { return b.activations == tier; });
}

bool Placement::any_streamed() const {
  return std::any_of(blocks.begin(), blocks.end(),
                     [](const BlockPlacement& b) { return !b.resident; });
}

Bytes state_bytes(StateFormat format, ElementCount parameters) {
  const std::uint64_t master = parameters.value() * (format == StateFormat::fp32 ? 4 : 2);
  return Bytes{round_up(master + (moment_bytes(format, parameters) * 2U).value(), kPageBytes)};
}

Bytes slot_bytes(StateFormat format, ElementCount parameters) {
  const std::uint64_t narrow = format == StateFormat::fp32 ? 0 : 2 * parameters.value();
  return state_bytes(format, parameters) + Bytes{round_up(narrow, kPageBytes)};
}

ElementCount parameter_slot_elements(const Workload& workload, const Placement& placement) {
  ElementCount largest;
  for (std::size_t b = 0; b < workload.blocks.size(); ++b) {
    if (!placement.blocks[b].resident) {
      largest = std::max(largest, workload.blocks[b].padded_parameters);
    }
  }
  return largest;
}

ElementCount gradient_slot_elements(const Workload& workload) {
  ElementCount largest;
  for (std::size_t b = workload.tiled ? 1 : 0; b < workload.blocks.size(); ++b) {
    largest = std::max(largest, workload.blocks[b].padded_parameters);
  }
  return largest;
}

ElementCount vector_elements(const Workload& workload) {
  return workload.tiled ? workload.blocks.front().padded_parameters : ElementCount{};
}

ElementCount largest_block(const Workload& workload) {
  return std::max(gradient_slot_elements(workload), vector_elements(workload));
}

DType waiting_gradient_dtype(const Workload& workload) {
  return workload.rounds > 1 ? DType::fp32 : workload.compute;
}

bool gradient_on_device(const Workload& workload, const Placement& placement, std::size_t block) {
  const BlockPlacement& place = placement.blocks[block];
  return place.state == Tier::device || (place.sums && workload.rounds > 1);
}

std::vector<MemoryItem> memory_items(const Workload& w, const Placement& p) {
  SPILLWAY_ASSERT(p.blocks.size() == w.blocks.size() && w.blocks.size() >= 2);
  Items items;
  const auto resident = [](const BlockPlacement& b) { return b.resident; };
  const auto off_device = [](const BlockPlacement& b) { return b.state != Tier::device; };
  items.add(Tier::device, "resident parameters", elements(count_if(w, p, resident), w.compute));
  items.add(Tier::device, "parameter slots",
            elements(parameter_slot_elements(w, p), w.compute) * std::uint64_t{p.parameter_slots});
  items.add(Tier::device, "optimizer state", tier_state(w, p, Tier::device));
  add_gradients(w, p, items);
  add_activations(w, p, items);
  items.add(Tier::host, "parameters", elements(count_if(w, p, off_device), w.compute));
  items.add(Tier::host, "optimizer state", tier_state(w, p, Tier::host));
  // The staging buffers also carry state to and from disk at commits and at start.
  items.add(Tier::host, "state staging",
            slot_bytes(p.format, p.tile_parameters) * std::uint64_t{p.state_slots});
  items.add(Tier::host, "token ids", w.token_bytes * (std::uint64_t{w.micro_batches} * w.rounds));
  items.add(Tier::host, "norm leaves and loss sums",
            Bytes{sizeof(double) * (padded_total(w).value() / kLeafParameters +
                                    std::uint64_t{w.micro_batches} * w.rounds)});
  // With commits every tile has two slots on disk, whatever its tier.
  items.add(Tier::nvme, "state, two slots", slots_on_disk(w, p) * 2u);
  return items.take();
}

Bytes total(const std::vector<MemoryItem>& items, Tier tier) {
  Bytes sum;
  for (const MemoryItem& item : items) {
    if (item.tier == tier) sum += item.bytes;
  }
  return sum;
}

Bytes slots_on_disk(const Workload& workload, const Placement& placement) {
  const auto has_slots = [&](const BlockPlacement& b) {
    return placement.commits || b.state == Tier::nvme;
  };
  return sum_of_tiles(workload, placement, has_slots, slot_bytes);
}

std::vector<Tile> make_tiles(const Workload& workload, ElementCount tile_parameters) {
  SPILLWAY_ASSERT(tile_parameters.value() > 0 && tile_parameters.value() % kLeafParameters == 0);
  std::vector<Tile> tiles;
  for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
    const ElementCount padded = workload.blocks[b].padded_parameters;
    for (ElementCount first; first < padded; first += tile_parameters) {
      tiles.push_back({b, first, std::min(tile_parameters, padded - first)});
    }
  }
  return tiles;
}

}  // namespace spillway::plan
