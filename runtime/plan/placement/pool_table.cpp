#include "runtime/plan/placement/pool_table.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/reduction.hpp"

namespace spillway::plan {
namespace {

// How a block is placed that has a share

constexpr CutSet kAnyCut{};
constexpr CutSet kNoCut{.parameters = 0};
constexpr Places kOnDevice = place_of(Tier::device);
constexpr Places kElsewhere = kAnyPlace & ~kOnDevice;
constexpr CutSet kResident{.parameters = kOnDevice};
constexpr CutSet kStreamed{.parameters = kElsewhere};

CutSet if_so(bool holds, const CutSet& cuts) { return holds ? cuts : kNoCut; }

CutSet any_block(const PoolSizes&, std::uint32_t) { return kAnyCut; }
CutSet resident_alone(const PoolSizes& s, std::uint32_t) {
  return if_so(!s.workload().shares_updates(), kResident);
}
CutSet resident_of_ranks(const PoolSizes& s, std::uint32_t) {
  return if_so(s.workload().shares_updates(), kResident);
}
CutSet resident_and_stashed(const PoolSizes& s, std::uint32_t) {
  return if_so(s.workload().stale.stashes(), kResident);
}
CutSet frozen_on_host(const PoolSizes&, std::uint32_t) {
  return {.parameters = place_of(Tier::host)};
}
CutSet frozen_on_disk(const PoolSizes&, std::uint32_t) {
  return {.parameters = place_of(Tier::nvme)};
}
CutSet streamed_and_stashed(const PoolSizes& s, std::uint32_t) {
  return if_so(s.workload().stale.stashes(), kStreamed);
}
CutSet secondary(const PoolSizes& s, std::uint32_t block) {
  return if_so(s.workload().keeps_secondary(block), kAnyCut);
}
CutSet device_updates(const PoolSizes&, std::uint32_t) { return {.state = kOnDevice}; }
CutSet host_updates(const PoolSizes&, std::uint32_t) { return {.state = kElsewhere}; }
CutSet device_sums(const PoolSizes& s, std::uint32_t) {
  return if_so(s.workload().sums_gradients(), {.gradients = kOnDevice, .state = kElsewhere});
}
CutSet host_keeps_state(const PoolSizes&, std::uint32_t) { return {.state = place_of(Tier::host)}; }
CutSet disk_keeps_state(const PoolSizes& s, std::uint32_t) {
  return s.commits() ? kAnyCut : CutSet{.state = place_of(Tier::nvme)};
}
template <Tier kHome>
CutSet boundary_waits(const PoolSizes& s, std::uint32_t block) {
  const PoolSizes::Block& b = s.block(block);
  const bool has_home = boundary_home(kHome, b.output_waits) == kHome;
  return if_so(b.starts_layer && has_home && s.workload().has_output(s.workload().layer_of(block)),
               {.output = place_of(kHome)});
}
template <Tier kHome>
CutSet saved_in(const PoolSizes&, std::uint32_t) {
  return {.saved = place_of(kHome)};
}

// Number of buffers that blocks share

using Number = std::uint64_t;

Number one(const Workload&, const Placement&) { return 1; }
Number one_if_borrowed(const Workload& w, const Placement&) {
  return w.borrows_embedding() ? 1 : 0;
}
// Backward writes an output again that nobody reads, and that may have no place here.
Number one_if_unread(const Workload& w, const Placement& p) {
  return p.boundary_slots > 0 && !w.operator_tiles && !w.sums_passes() ? 1 : 0;
}
// The blocks of a layer in tiles meet in it, each after all micro-batches of the one before.
Number one_or_in_tiles(const Workload& w, const Placement&) {
  return w.operator_tiles ? w.micro_batches : 1;
}
Number micro_batches(const Workload& w, const Placement&) { return w.micro_batches; }
Number micro_batches_of_tokens(const Workload& w, const Placement&) {
  return w.shares_tokens() ? w.micro_batches : 0;
}
Number micro_batches_in_head(const Workload& w, const Placement&) {
  return w.runs(w.head_layer()) ? w.micro_batches : 0;
}
Number in_flight(const Workload& w, const Placement&) { return w.micro_batches_in_flight(); }
Number in_flight_without_slots(const Workload& w, const Placement& p) {
  return p.boundary_slots > 0 ? 0 : w.micro_batches_in_flight();
}
Number passes(const Workload& w, const Placement&) { return micro_batches_of_step(w); }
Number passes_and_begun(const Workload& w, const Placement&) {
  return micro_batches_of_step(w) + Number{w.micro_batches} * w.stale.begun;
}
Number replicas_of_many(const Workload& w, const Placement&) {
  return w.replicas.count > 1 ? w.replicas.count : 0;
}
/// One for each block that a tied head uses.
Number tied_sums(const Workload& w, const Placement&) {
  const BlockRange tied = w.tied_blocks();
  const bool here = w.runs(0) || w.borrows_embedding();
  return here ? (tied.end - tied.first) * w.stage.tied_in_flight : 0;
}
Number parameter_slots(const Workload&, const Placement& p) { return p.parameter_slots; }
Number parameter_shards(const Workload& w, const Placement& p) {
  return parameter_shard_slots(w, p);
}
Number gradient_slots(const Workload&, const Placement& p) { return p.gradient_slots; }
Number boundary_slots(const Workload& w, const Placement& p) { return device_boundary_slots(w, p); }
Number boundary_staging(const Workload&, const Placement& p) {
  return p.boundary_slots > 0 ? p.boundary_staging : 0;
}
Number saved_slots(const Workload&, const Placement& p) { return p.saved_slots; }
Number saved_staging(const Workload&, const Placement& p) { return p.saved_staging; }
Number frozen_staging(const Workload&, const Placement& p) { return p.frozen_staging; }
Number state_slots(const Workload&, const Placement& p) { return p.state_slots; }

const Workload& workload_of(const SizedBuffer& b) { return b.sizes.workload(); }

Bytes no_bytes(const SizedBuffer&) { return {}; }

// Size of a buffer of parameters

Bytes elements_computed(const SizedBuffer& b) {
  return bytes_of(b.elements, workload_of(b).compute);
}
Bytes whole_block(const SizedBuffer& b) {
  return bytes_of(workload_of(b).blocks[b.block].padded_parameters, workload_of(b).compute);
}
Bytes secondary_part(const SizedBuffer& b) {
  return bytes_of(workload_of(b).secondary_elements(b.block), workload_of(b).compute);
}
Bytes frozen(const SizedBuffer& b) { return workload_of(b).blocks[b.block].frozen_bytes; }
Bytes frozen_in_pages(const SizedBuffer& b) { return in_pages(frozen(b)); }
Bytes resident_frozen(const SizedBuffer& b) { return workload_of(b).resident_frozen_bytes; }
Bytes largest_frozen(const SizedBuffer& b) { return b.sizes.frozen_slot(); }
Bytes largest_frozen_in_pages(const SizedBuffer& b) { return in_pages(largest_frozen(b)); }
Bytes streamed_block(const SizedBuffer& b) {
  return bytes_of(b.strides.streamed, workload_of(b).compute);
}
Bytes largest_shard(const SizedBuffer& b) {
  const Workload& w = workload_of(b);
  const std::uint32_t fewest = w.replicas.secondary > 1 ? w.replicas.secondary : w.shards();
  return bytes_of(ElementCount{b.sizes.gradient_slot().value() / fewest}, w.compute);
}
Bytes tied_embedding(const SizedBuffer& b) {
  return bytes_of(workload_of(b).tied_elements, workload_of(b).compute);
}

// Size of a buffer of gradients

Bytes waiting_gradient(const SizedBuffer& b) {
  return bytes_of(b.elements, waiting_gradient_dtype(workload_of(b)));
}
Bytes gradient_fp32(const SizedBuffer& b) { return bytes_of(b.elements, DType::fp32); }
Bytes gradient_rounded(const SizedBuffer& b) {
  return workload_of(b).compute == DType::fp32 ? Bytes{} : elements_computed(b);
}
/// What a rank gets of the gradients of a round.
Bytes gradient_received(const SizedBuffer& b) {
  const Workload& w = workload_of(b);
  if (w.replicas.count == 1) return {};
  return bytes_of(reduction_of(w, b.elements).got(), w.compute);
}
Bytes gradient_landing(const SizedBuffer& b) {
  if (!b.strides.lands) return {};
  return workload_of(b).replicas.count > 1 ? gradient_received(b) : elements_computed(b);
}
Bytes largest_tied_sum(const SizedBuffer& b) {
  const Workload& w = workload_of(b);
  ElementCount largest;
  for (std::uint32_t block = w.tied_blocks().first; block < w.tied_blocks().end; ++block) {
    largest = std::max(largest, w.tied_elements_of(block));
  }
  return bytes_of(largest, DType::fp32);
}
Bytes leaves(const SizedBuffer& b) {
  return Bytes{b.elements.value() / kLeafParameters * sizeof(double)};
}
Bytes loss(const SizedBuffer&) { return Bytes{sizeof(double)}; }
Bytes losses(const SizedBuffer& b) { return loss(b) * micro_batches_of_step(workload_of(b)); }
/// All of a rank's `host_leaves`.
Bytes all_leaves(const SizedBuffer& b) {
  Bytes sums = losses(b);
  for (std::uint32_t block = 0; block < b.sizes.size(); ++block) {
    sums += b.sizes.block(block).shares[static_cast<std::size_t>(PoolKind::host_leaves)];
  }
  return sums;
}

// Size of a buffer of state

Bytes state_of_tile(const SizedBuffer& b) { return state_bytes(b.sizes.format(), b.elements); }
// Both slots of a tile that is on disk, whatever its tier.
Bytes both_slots(const SizedBuffer& b) {
  const Bytes stash = b.sizes.commits() ? stash_slot_bytes(workload_of(b), b.elements) : Bytes{};
  return (slot_bytes(b.sizes.format(), b.elements) + stash) * 2U;
}
// The staging buffers also carry state to and from disk at commits and at start.
Bytes slot_of_tile(const SizedBuffer& b) {
  return slot_bytes(b.sizes.format(), b.sizes.tile_parameters());
}

// Size of a buffer of activations, and of what passes use beside them

Bytes boundary(const SizedBuffer& b) { return workload_of(b).boundary_bytes; }
Bytes boundary_in_pages(const SizedBuffer& b) { return in_pages(boundary(b)); }
Bytes saved(const SizedBuffer& b) { return b.sizes.saved(b.block); }
Bytes saved_in_pages(const SizedBuffer& b) { return in_pages(saved(b)); }
Bytes largest_leaving(const SizedBuffer& b) { return b.strides.leaving; }
Bytes largest_staged(const SizedBuffer& b) { return in_pages(b.strides.staged); }
Bytes largest_recomputed(const SizedBuffer& b) { return b.strides.recomputed; }
Bytes carried(const SizedBuffer& b) { return workload_of(b).carried_bytes; }
Bytes summed(const SizedBuffer& b) { return workload_of(b).summed_bytes; }
Bytes scan(const SizedBuffer& b) { return workload_of(b).scan_bytes; }
Bytes scans_of_group(const SizedBuffer& b) {
  return scan(b) * std::uint64_t{workload_of(b).tensor.count};
}
Bytes workspace(const SizedBuffer& b) { return workload_of(b).workspace_bytes; }
Bytes constants(const SizedBuffer& b) { return workload_of(b).constant_bytes; }
Bytes tokens(const SizedBuffer& b) { return workload_of(b).token_bytes; }
Bytes logits(const SizedBuffer& b) { return workload_of(b).logits_bytes; }

constexpr std::array<PoolRule, kPoolCount> kPools{{
    {PoolKind::resident_parameters, Tier::device, "resident_parameters", "resident parameters",
     PoolLayout::tiles, resident_alone, elements_computed, Found::everything},
    {PoolKind::stashed_parameters, Tier::device, "stashed_parameters", "stashed parameters",
     PoolLayout::versions, resident_and_stashed, elements_computed, Found::everything},
    {PoolKind::whole_parameters, Tier::device, "whole_parameters", "gathered parameters",
     PoolLayout::blocks, resident_of_ranks, whole_block, Found::everything},
    {PoolKind::parameter_slots, Tier::device, "parameter_slots", "parameter slots",
     PoolLayout::slots, parameter_slots, streamed_block, Found::nothing, ExternalRuns::streamed},
    {PoolKind::parameter_shards, Tier::device, "parameter_shards", "parameter shards",
     PoolLayout::slots, parameter_shards, largest_shard},
    {PoolKind::frozen_slots, Tier::device, "frozen_slots", "slots of frozen parameters",
     PoolLayout::slots, parameter_slots, largest_frozen, Found::nothing, ExternalRuns::streamed},
    {PoolKind::resident_frozen, Tier::device, "resident_frozen", "frozen parameters",
     PoolLayout::row, one, resident_frozen, Found::nothing, ExternalRuns::streamed},
    {PoolKind::device_state, Tier::device, "device_state", "optimizer state", PoolLayout::tiles,
     device_updates, state_of_tile, Found::everything},
    {PoolKind::accumulators, Tier::device, "accumulators", "gradient accumulators",
     PoolLayout::gradient_slots, gradient_slots, gradient_fp32},
    {PoolKind::rounded_gradients, Tier::device, "rounded_gradients", "rounded gradients",
     PoolLayout::gradient_slots, gradient_slots, gradient_rounded},
    {PoolKind::gradient_shards, Tier::device, "gradient_shards", "gradient shards",
     PoolLayout::gradient_slots, gradient_slots, gradient_received},
    {PoolKind::tied_parameters, Tier::device, "tied_parameters", "tied parameters", PoolLayout::row,
     one_if_borrowed, tied_embedding},
    {PoolKind::tied_accumulators, Tier::device, "tied_accumulators", "tied accumulator",
     PoolLayout::row, tied_sums, largest_tied_sum},
    {PoolKind::device_gradients, Tier::device, "device_gradients", "waiting gradients",
     PoolLayout::tiles, device_updates, waiting_gradient, Found::everything},
    {PoolKind::device_leaves, Tier::device, "device_leaves", "gradient norm leaves",
     PoolLayout::tiles, device_updates, leaves},
    {PoolKind::device_sums, Tier::device, "device_sums", "sums of rounds", PoolLayout::tiles,
     device_sums, waiting_gradient},
    {PoolKind::boundaries, Tier::device, "boundaries", "boundary activations", PoolLayout::layers,
     boundary_waits<Tier::device>, boundary, Found::rounds_in_flight},
    {PoolKind::boundary_gradients, Tier::device, "boundary_gradients", "boundary gradients",
     PoolLayout::row, in_flight_without_slots, boundary},
    {PoolKind::boundary_slots, Tier::device, "boundary_slots", "boundary slots", PoolLayout::slots,
     boundary_slots, boundary},
    {PoolKind::recomputed_boundary, Tier::device, "recomputed_boundary", "recomputed boundary",
     PoolLayout::row, one_if_unread, boundary},
    {PoolKind::saved_activations, Tier::device, "saved_activations", "saved activations",
     PoolLayout::saved, saved_in<Tier::device>, saved, Found::rounds_in_flight},
    {PoolKind::saved_activation_slots, Tier::device, "saved_activation_slots",
     "saved activation slots", PoolLayout::slots, saved_slots, largest_leaving},
    {PoolKind::recomputation_scratch, Tier::device, "recomputation_scratch",
     "recomputation scratch", PoolLayout::row, one_or_in_tiles, largest_recomputed},
    {PoolKind::between_tiles, Tier::device, "between_tiles", "between tiles", PoolLayout::row,
     micro_batches, carried},
    {PoolKind::own_rows, Tier::device, "own_rows", "own rows", PoolLayout::row,
     micro_batches_of_tokens, boundary},
    {PoolKind::gathered_rows, Tier::device, "gathered_rows", "gathered rows", PoolLayout::row,
     micro_batches_of_tokens, summed},
    {PoolKind::gathered_gradients, Tier::device, "gathered_gradients", "gathered gradients",
     PoolLayout::row, micro_batches_of_tokens, summed},
    {PoolKind::vocabulary_scans, Tier::device, "vocabulary_scans", "vocabulary scans",
     PoolLayout::row, micro_batches_in_head, scan},
    {PoolKind::gathered_scans, Tier::device, "gathered_scans", "scans of a tensor group",
     PoolLayout::row, micro_batches_in_head, scans_of_group},
    {PoolKind::workspace, Tier::device, "workspace", "operator workspace", PoolLayout::row, one,
     workspace},
    {PoolKind::constants, Tier::device, "constants", "rotary tables", PoolLayout::row, one,
     constants},
    {PoolKind::device_tokens, Tier::device, "device_tokens", "token ids", PoolLayout::row,
     in_flight, tokens, Found::rounds_in_flight},
    {PoolKind::device_losses, Tier::device, "device_losses", "loss sums", PoolLayout::row, passes,
     loss},
    {PoolKind::logits, Tier::device, "logits", "logits", PoolLayout::row, one, logits},
    {PoolKind::host_gradients, Tier::host, "host_gradients", "waiting gradients", PoolLayout::tiles,
     host_updates, waiting_gradient, Found::everything},
    {PoolKind::landing_gradients, Tier::host, "landing_gradients", "landing gradients",
     PoolLayout::gradient_slots, gradient_slots, gradient_landing},
    {PoolKind::host_boundaries, Tier::host, "host_boundaries", "boundary activations",
     PoolLayout::layers, boundary_waits<Tier::host>, boundary},
    {PoolKind::boundary_staging, Tier::host, "boundary_staging", "boundary staging",
     PoolLayout::slots, boundary_staging, boundary_in_pages},
    {PoolKind::host_saved_activations, Tier::host, "host_saved_activations", "saved activations",
     PoolLayout::saved, saved_in<Tier::host>, saved, Found::rounds_in_flight},
    {PoolKind::saved_activation_staging, Tier::host, "saved_activation_staging",
     "saved activation staging", PoolLayout::slots, saved_staging, largest_staged},
    {PoolKind::host_parameters, Tier::host, "host_parameters", "parameters", PoolLayout::tiles,
     host_updates, elements_computed, Found::everything},
    {PoolKind::host_stash, Tier::host, "host_stash", "stashed parameters", PoolLayout::versions,
     streamed_and_stashed, elements_computed, Found::everything},
    {PoolKind::host_frozen, Tier::host, "host_frozen", "frozen parameters", PoolLayout::blocks,
     frozen_on_host, frozen, Found::everything},
    {PoolKind::frozen_staging, Tier::host, "frozen_staging", "staging of frozen parameters",
     PoolLayout::slots, frozen_staging, largest_frozen_in_pages, Found::nothing,
     ExternalRuns::streamed},
    {PoolKind::secondary_parameters, Tier::host, "secondary_parameters", "secondary parameters",
     PoolLayout::blocks, secondary, secondary_part},
    {PoolKind::host_state, Tier::host, "host_state", "optimizer state", PoolLayout::tiles,
     host_keeps_state, state_of_tile, Found::everything},
    {PoolKind::state_staging, Tier::host, "state_staging", "state staging", PoolLayout::row,
     state_slots, slot_of_tile, Found::staged_state, ExternalRuns::all},
    {PoolKind::checksums, Tier::host, "checksums", "checksums", PoolLayout::tiles, any_block,
     no_bytes},
    {PoolKind::host_tokens, Tier::host, "host_tokens", "token ids", PoolLayout::row,
     passes_and_begun, tokens, Found::everything},
    {PoolKind::host_leaves, Tier::host, "host_leaves", "norm leaves and loss sums",
     PoolLayout::tiles, any_block, leaves, Found::nothing, ExternalRuns::none, losses},
    {PoolKind::gathered_leaves, Tier::host, "gathered_leaves", "norm leaves of all ranks",
     PoolLayout::row, replicas_of_many, all_leaves},
    {PoolKind::disk_frozen, Tier::nvme, "disk_frozen", "frozen parameters", PoolLayout::blocks,
     frozen_on_disk, frozen_in_pages, Found::everything},
    {PoolKind::disk_boundaries, Tier::nvme, "disk_boundaries", "boundary activations",
     PoolLayout::layers, boundary_waits<Tier::nvme>, boundary_in_pages},
    {PoolKind::disk_saved_activations, Tier::nvme, "disk_saved_activations", "saved activations",
     PoolLayout::saved, saved_in<Tier::nvme>, saved_in_pages, Found::rounds_in_flight},
    {PoolKind::disk_state, Tier::nvme, "disk_state", "state, two slots", PoolLayout::tiles,
     disk_keeps_state, both_slots, Found::everything},
}};

/// Each row stands where its pool's number says.
constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kPoolCount; ++i) {
    if (static_cast<std::size_t>(kPools[i].pool) != i) return false;
  }
  return true;
}
static_assert(is_in_order());

constexpr bool belongs_to_blocks(const PoolRule& rule) { return rule.layout < PoolLayout::row; }
template <Tier kTier>
constexpr bool lies_in(const PoolRule& rule) {
  return rule.tier == kTier;
}

template <bool (*kBelongs)(const PoolRule&)>
constexpr auto kPoolsThat = [] {
  std::array<PoolKind, static_cast<std::size_t>(std::ranges::count_if(kPools, kBelongs))> pools{};
  std::size_t next = 0;
  for (const PoolRule& rule : kPools) {
    if (kBelongs(rule)) pools[next++] = rule.pool;
  }
  return pools;
}();

}  // namespace

const PoolRule& rule_of(PoolKind pool) { return kPools[static_cast<std::size_t>(pool)]; }
std::span<const PoolKind> block_pools() { return kPoolsThat<belongs_to_blocks>; }
std::span<const PoolKind> pools_in(Tier tier) {
  switch (tier) {
    case Tier::device: return kPoolsThat<lies_in<Tier::device>>;
    case Tier::host: return kPoolsThat<lies_in<Tier::host>>;
    case Tier::nvme: return kPoolsThat<lies_in<Tier::nvme>>;
  }
  return {};
}

Tier tier_of(PoolKind pool) { return rule_of(pool).tier; }
std::string_view name_of(PoolKind pool) { return rule_of(pool).name; }
std::string_view label_of(PoolKind pool) { return rule_of(pool).label; }

}  // namespace spillway::plan
