#include "runtime/plan/buffers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace spillway::plan {
namespace {

constexpr std::array<PoolRule, kPoolCount> kPools{{
    {PoolKind::resident_parameters, Tier::device, "resident_parameters", "resident parameters",
     PoolLayout::tiles},
    {PoolKind::stashed_parameters, Tier::device, "stashed_parameters", "stashed parameters",
     PoolLayout::versions},
    {PoolKind::whole_parameters, Tier::device, "whole_parameters", "gathered parameters",
     PoolLayout::blocks},
    {PoolKind::parameter_slots, Tier::device, "parameter_slots", "parameter slots",
     PoolLayout::slots},
    {PoolKind::parameter_shards, Tier::device, "parameter_shards", "parameter shards",
     PoolLayout::slots},
    {PoolKind::frozen_slots, Tier::device, "frozen_slots", "slots of frozen parameters",
     PoolLayout::slots},
    {PoolKind::resident_frozen, Tier::device, "resident_frozen", "frozen parameters",
     PoolLayout::row},
    {PoolKind::device_state, Tier::device, "device_state", "optimizer state", PoolLayout::tiles},
    {PoolKind::accumulators, Tier::device, "accumulators", "gradient accumulators",
     PoolLayout::gradient_slots},
    {PoolKind::rounded_gradients, Tier::device, "rounded_gradients", "rounded gradients",
     PoolLayout::gradient_slots},
    {PoolKind::gradient_shards, Tier::device, "gradient_shards", "gradient shards",
     PoolLayout::gradient_slots},
    {PoolKind::tied_parameters, Tier::device, "tied_parameters", "tied parameters",
     PoolLayout::row},
    {PoolKind::tied_accumulators, Tier::device, "tied_accumulators", "tied accumulator",
     PoolLayout::row},
    {PoolKind::device_gradients, Tier::device, "device_gradients", "waiting gradients",
     PoolLayout::tiles},
    {PoolKind::device_leaves, Tier::device, "device_leaves", "gradient norm leaves",
     PoolLayout::tiles},
    {PoolKind::device_sums, Tier::device, "device_sums", "sums of rounds", PoolLayout::tiles},
    {PoolKind::boundaries, Tier::device, "boundaries", "boundary activations", PoolLayout::layers},
    {PoolKind::boundary_gradients, Tier::device, "boundary_gradients", "boundary gradients",
     PoolLayout::row},
    {PoolKind::boundary_slots, Tier::device, "boundary_slots", "boundary slots", PoolLayout::slots},
    {PoolKind::recomputed_boundary, Tier::device, "recomputed_boundary", "recomputed boundary",
     PoolLayout::row},
    {PoolKind::saved_activations, Tier::device, "saved_activations", "saved activations",
     PoolLayout::saved},
    {PoolKind::saved_activation_slots, Tier::device, "saved_activation_slots",
     "saved activation slots", PoolLayout::slots},
    {PoolKind::recomputation_scratch, Tier::device, "recomputation_scratch",
     "recomputation scratch", PoolLayout::row},
    {PoolKind::between_tiles, Tier::device, "between_tiles", "between tiles", PoolLayout::row},
    {PoolKind::own_rows, Tier::device, "own_rows", "own rows", PoolLayout::row},
    {PoolKind::gathered_rows, Tier::device, "gathered_rows", "gathered rows", PoolLayout::row},
    {PoolKind::gathered_gradients, Tier::device, "gathered_gradients", "gathered gradients",
     PoolLayout::row},
    {PoolKind::vocabulary_scans, Tier::device, "vocabulary_scans", "vocabulary scans",
     PoolLayout::row},
    {PoolKind::gathered_scans, Tier::device, "gathered_scans", "scans of a tensor group",
     PoolLayout::row},
    {PoolKind::workspace, Tier::device, "workspace", "operator workspace", PoolLayout::row},
    {PoolKind::constants, Tier::device, "constants", "rotary tables", PoolLayout::row},
    {PoolKind::device_tokens, Tier::device, "device_tokens", "token ids", PoolLayout::row},
    {PoolKind::device_losses, Tier::device, "device_losses", "loss sums", PoolLayout::row},
    {PoolKind::logits, Tier::device, "logits", "logits", PoolLayout::row},
    {PoolKind::host_gradients, Tier::host, "host_gradients", "waiting gradients",
     PoolLayout::tiles},
    {PoolKind::landing_gradients, Tier::host, "landing_gradients", "landing gradients",
     PoolLayout::gradient_slots},
    {PoolKind::host_boundaries, Tier::host, "host_boundaries", "boundary activations",
     PoolLayout::layers},
    {PoolKind::boundary_staging, Tier::host, "boundary_staging", "boundary staging",
     PoolLayout::slots},
    {PoolKind::host_saved_activations, Tier::host, "host_saved_activations", "saved activations",
     PoolLayout::saved},
    {PoolKind::saved_activation_staging, Tier::host, "saved_activation_staging",
     "saved activation staging", PoolLayout::slots},
    {PoolKind::host_parameters, Tier::host, "host_parameters", "parameters", PoolLayout::tiles},
    {PoolKind::host_stash, Tier::host, "host_stash", "stashed parameters", PoolLayout::versions},
    {PoolKind::host_frozen, Tier::host, "host_frozen", "frozen parameters", PoolLayout::blocks},
    {PoolKind::secondary_parameters, Tier::host, "secondary_parameters", "secondary parameters",
     PoolLayout::blocks},
    {PoolKind::host_state, Tier::host, "host_state", "optimizer state", PoolLayout::tiles},
    {PoolKind::state_staging, Tier::host, "state_staging", "state staging", PoolLayout::row},
    {PoolKind::checksums, Tier::host, "checksums", "checksums", PoolLayout::row},
    {PoolKind::host_tokens, Tier::host, "host_tokens", "token ids", PoolLayout::row},
    {PoolKind::host_leaves, Tier::host, "host_leaves", "norm leaves and loss sums",
     PoolLayout::tiles},
    {PoolKind::gathered_leaves, Tier::host, "gathered_leaves", "norm leaves of all ranks",
     PoolLayout::row},
    {PoolKind::disk_boundaries, Tier::nvme, "disk_boundaries", "boundary activations",
     PoolLayout::layers},
    {PoolKind::disk_saved_activations, Tier::nvme, "disk_saved_activations", "saved activations",
     PoolLayout::saved},
    {PoolKind::disk_state, Tier::nvme, "disk_state", "state, two slots", PoolLayout::tiles},
}};

/// Each row stands where its pool's number says.
constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kPoolCount; ++i) {
    if (static_cast<std::size_t>(kPools[i].pool) != i) return false;
  }
  return true;
}
static_assert(is_in_order());

constexpr std::array<std::string_view, kValueKindCount> kValues{
    "parameters",        "frozen",   "state",          "checksum",    "gradient_sum",
    "tied_gradient_sum", "gradient", "total_gradient", "norm_leaves", "boundary",
    "boundary_gradient", "saved",    "scanned",        "normal",      "gathered_scans",
    "between_tiles",     "tokens",   "loss",           "logits",      "scratch",
};

constexpr bool belongs_to_blocks(const PoolRule& rule) { return rule.layout < PoolLayout::row; }

constexpr auto kBlockPools = [] {
  std::array<PoolKind, std::ranges::count_if(kPools, belongs_to_blocks)> pools{};
  std::size_t next = 0;
  for (const PoolRule& rule : kPools) {
    if (belongs_to_blocks(rule)) pools[next++] = rule.pool;
  }
  return pools;
}();

}  // namespace

std::span<const PoolKind> block_pools() { return kBlockPools; }
const PoolRule& rule_of(PoolKind pool) { return kPools[static_cast<std::size_t>(pool)]; }
std::string_view name_of(ValueKind kind) { return kValues[static_cast<std::size_t>(kind)]; }

std::string to_text(const Buffer& buffer) {
  if (buffer.count == 1) return fmt::format("{} {}", name_of(buffer.pool), buffer.first);
  return fmt::format("{} {}..{}", name_of(buffer.pool), buffer.first,
                     buffer.first + buffer.count - 1);
}

}  // namespace spillway::plan
