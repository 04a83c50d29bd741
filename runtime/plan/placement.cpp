#include "runtime/plan/placement.hpp"

#include <algorithm>
#include <array>

#include "runtime/base/error.hpp"
#include "runtime/base/stagger.hpp"
#include "runtime/plan/boundaries.hpp"
#include "runtime/plan/memory_sums.hpp"
#include "runtime/plan/theory.hpp"

namespace spillway::plan {
namespace {

Bytes elements(ElementCount count, DType dtype) { return Bytes{count.value() * size_of(dtype)}; }

/// Tells `sink(tier, what, bytes)` of each item of the memory of a placement with these sums.
template <class Sink>
void list_boundaries(const Workload& w, const Placement& p, const MemorySums& sums, Sink&& sink) {
  const std::uint64_t micro_batches = w.micro_batches;
  const auto activations = [&](BoundaryHome home) -> std::uint64_t {
    if (w.tiled) return home == BoundaryHome::device ? micro_batches * (w.layers() - 1) : 0;
    return micro_batches * sums.with(home);
  };
  const Bytes one = w.boundary_bytes;
  sink(Tier::device, "boundary activations", one * activations(BoundaryHome::device));
  if (p.boundary_slots == 0) {
    sink(Tier::device, "boundary gradients", one * micro_batches);
    return;
  }
  sink(Tier::device, "boundary slots", one * std::uint64_t{device_boundary_slots(w, p)});
  // Backward writes an output again that nobody reads, and that may have no home here.
  sink(Tier::device, "recomputed boundary", one);
  sink(Tier::host, "boundary activations", one * activations(BoundaryHome::host));
  sink(Tier::host, "parked boundaries", one * std::uint64_t{parked_micro_batches(w, p)});
  sink(Tier::host, "boundary staging", boundary_disk_bytes(w) * std::uint64_t{p.boundary_staging});
  sink(Tier::nvme, "boundary activations",
       boundary_disk_bytes(w) * activations(BoundaryHome::nvme));
}

template <class Sink>
void list_activations(const Workload& w, const Placement& p, const MemorySums& sums, Sink&& sink) {
  const std::uint64_t micro_batches = w.micro_batches;
  list_boundaries(w, p, sums, sink);
  sink(Tier::device, "kept activations", sums.kept() * micro_batches);
  sink(Tier::device, "kept activation slots", sums.saved_slot() * std::uint64_t{p.saved_slots});
  // The blocks of a layer in tiles meet in it, each after all micro-batches of the one before.
  sink(Tier::device, "recomputation scratch", sums.scratch() * (w.tiled ? micro_batches : 1));
  sink(Tier::device, "between tiles", w.carried_bytes * micro_batches);
  sink(Tier::device, "operator workspace", w.workspace_bytes);
  sink(Tier::device, "rotary tables", w.constant_bytes);
  sink(Tier::device, "token ids", w.token_bytes * micro_batches);
  sink(Tier::device, "loss sums", Bytes{sizeof(double) * micro_batches * w.rounds});
  sink(Tier::host, "kept activations", sums.offloaded() * micro_batches);
}

template <class Sink>
void list_gradients(const Workload& w, const Placement& p, const MemorySums& sums, Sink&& sink) {
  const ElementCount slots{sums.sizes().gradient_slot.value() * p.gradient_slots +
                           vector_elements(w).value()};
  sink(Tier::device, "gradient accumulators", elements(slots, DType::fp32));
  if (w.compute != DType::fp32) {
    sink(Tier::device, "rounded gradients", elements(slots, w.compute));
  }
  if (w.tied_head) {
    sink(Tier::device, "tied accumulator", elements(w.tied_elements, DType::fp32));
  }
  const DType waiting = waiting_gradient_dtype(w);
  const ElementCount device = sums.updated_on_device();
  const ElementCount host = sums.updated_on_host();
  sink(Tier::device, "waiting gradients", elements(device, waiting));
  sink(Tier::device, "gradient norm leaves",
       Bytes{device.value() / kLeafParameters * sizeof(double)});
  sink(Tier::host, "waiting gradients", elements(host, waiting));
  if (w.rounds == 1) return;
  const ElementCount summed = sums.summed_on_device();
  sink(Tier::device, "sums of rounds", elements(summed, waiting));
  if (host > summed) sink(Tier::host, "landing gradients", elements(slots, w.compute));
}

template <class Sink>
void list_memory(const Workload& w, const Placement& p, const MemorySums& sums, Sink&& sink) {
  sink(Tier::device, "resident parameters", elements(sums.resident(), w.compute));
  sink(Tier::device, "parameter slots",
       elements(sums.parameter_slot(), w.compute) * std::uint64_t{p.parameter_slots});
  sink(Tier::device, "optimizer state", sums.state(Tier::device));
  list_gradients(w, p, sums, sink);
  list_activations(w, p, sums, sink);
  sink(Tier::host, "parameters", elements(sums.updated_on_host(), w.compute));
  sink(Tier::host, "optimizer state", sums.state(Tier::host));
  // The staging buffers also carry state to and from disk at commits and at start.
  sink(Tier::host, "state staging",
       slot_bytes(p.format, p.tile_parameters) * std::uint64_t{p.state_slots});
  sink(Tier::host, "token ids", w.token_bytes * (std::uint64_t{w.micro_batches} * w.rounds));
  sink(Tier::host, "norm leaves and loss sums",
       Bytes{sizeof(double) * (sums.sizes().padded.value() / kLeafParameters +
                               std::uint64_t{w.micro_batches} * w.rounds)});
  // With commits every tile has two slots on disk, whatever its tier.
  sink(Tier::nvme, "state, two slots", (p.commits ? sums.all_slots() : sums.slots_of_nvme()) * 2u);
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
  const Bytes moment = moment_values(format, parameters);
  const Bytes scales = (moment_bytes(format, parameters) - moment) * 2U;
  const std::array sizes{master, moment.value(), moment.value(), scales.value()};
  return Bytes{round_up(stagger(sizes).end, kPageBytes)};
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
  const BlockSizes sizes(w, p.format, p.tile_parameters);
  std::vector<MemoryItem> items;
  list_memory(w, p, MemorySums(sizes, p), [&](Tier tier, const char* what, Bytes bytes) {
    if (bytes > Bytes{}) items.push_back({tier, what, bytes});
  });
  return items;
}

TierBytes memory_totals(const Workload& workload, const Placement& placement,
                        const MemorySums& sums) {
  TierBytes totals{};
  list_memory(workload, placement, sums, [&](Tier tier, const char*, Bytes bytes) {
    totals[static_cast<std::size_t>(tier)] += bytes;
  });
  return totals;
}

Bytes total(const std::vector<MemoryItem>& items, Tier tier) {
  Bytes sum;
  for (const MemoryItem& item : items) {
    if (item.tier == tier) sum += item.bytes;
  }
  return sum;
}

Bytes slots_on_disk(const Workload& workload, const Placement& placement) {
  const BlockSizes sizes(workload, placement.format, placement.tile_parameters);
  const MemorySums sums(sizes, placement);
  return placement.commits ? sums.all_slots() : sums.slots_of_nvme();
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
