#include "runtime/plan/buffers.hpp"

#include <fmt/format.h>

#include <array>

namespace spillway::plan {
namespace {

constexpr std::array<PoolRule, kPoolCount> kPools{{
    {PoolKind::resident_parameters, Tier::device, "resident_parameters", "resident parameters",
     Turn::none},
    {PoolKind::stashed_parameters, Tier::device, "stashed_parameters", "stashed parameters",
     Turn::none},
    {PoolKind::whole_parameters, Tier::device, "whole_parameters", "gathered parameters",
     Turn::none},
    {PoolKind::parameter_slots, Tier::device, "parameter_slots", "parameter slots", Turn::slots},
    {PoolKind::parameter_shards, Tier::device, "parameter_shards", "parameter shards", Turn::slots},
    {PoolKind::frozen_slots, Tier::device, "frozen_slots", "slots of frozen parameters",
     Turn::slots},
    {PoolKind::resident_frozen, Tier::device, "resident_frozen", "frozen parameters", Turn::none},
    {PoolKind::device_state, Tier::device, "device_state", "optimizer state", Turn::none},
    {PoolKind::accumulators, Tier::device, "accumulators", "gradient accumulators",
     Turn::gradients},
    {PoolKind::rounded_gradients, Tier::device, "rounded_gradients", "rounded gradients",
     Turn::gradients},
    {PoolKind::gradient_shards, Tier::device, "gradient_shards", "gradient shards",
     Turn::gradients},
    {PoolKind::tied_parameters, Tier::device, "tied_parameters", "tied parameters", Turn::none},
    {PoolKind::tied_accumulators, Tier::device, "tied_accumulators", "tied accumulator",
     Turn::none},
    {PoolKind::device_gradients, Tier::device, "device_gradients", "waiting gradients", Turn::none},
    {PoolKind::device_leaves, Tier::device, "device_leaves", "gradient norm leaves", Turn::none},
    {PoolKind::device_sums, Tier::device, "device_sums", "sums of rounds", Turn::none},
    {PoolKind::boundaries, Tier::device, "boundaries", "boundary activations", Turn::none},
    {PoolKind::boundary_gradients, Tier::device, "boundary_gradients", "boundary gradients",
     Turn::none},
    {PoolKind::boundary_slots, Tier::device, "boundary_slots", "boundary slots", Turn::slots},
    {PoolKind::recomputed_boundary, Tier::device, "recomputed_boundary", "recomputed boundary",
     Turn::none},
    {PoolKind::saved_activations, Tier::device, "saved_activations", "saved activations",
     Turn::none},
    {PoolKind::saved_activation_slots, Tier::device, "saved_activation_slots",
     "saved activation slots", Turn::slots},
    {PoolKind::recomputation_scratch, Tier::device, "recomputation_scratch",
     "recomputation scratch", Turn::none},
    {PoolKind::between_tiles, Tier::device, "between_tiles", "between tiles", Turn::none},
    {PoolKind::own_rows, Tier::device, "own_rows", "own rows", Turn::none},
    {PoolKind::gathered_rows, Tier::device, "gathered_rows", "gathered rows", Turn::none},
    {PoolKind::gathered_gradients, Tier::device, "gathered_gradients", "gathered gradients",
     Turn::none},
    {PoolKind::vocabulary_scans, Tier::device, "vocabulary_scans", "vocabulary scans", Turn::none},
    {PoolKind::gathered_scans, Tier::device, "gathered_scans", "scans of a tensor group",
     Turn::none},
    {PoolKind::workspace, Tier::device, "workspace", "operator workspace", Turn::none},
    {PoolKind::constants, Tier::device, "constants", "rotary tables", Turn::none},
    {PoolKind::device_tokens, Tier::device, "device_tokens", "token ids", Turn::none},
    {PoolKind::device_losses, Tier::device, "device_losses", "loss sums", Turn::none},
    {PoolKind::logits, Tier::device, "logits", "logits", Turn::none},
    {PoolKind::host_gradients, Tier::host, "host_gradients", "waiting gradients", Turn::none},
    {PoolKind::landing_gradients, Tier::host, "landing_gradients", "landing gradients",
     Turn::gradients},
    {PoolKind::host_boundaries, Tier::host, "host_boundaries", "boundary activations", Turn::none},
    {PoolKind::boundary_staging, Tier::host, "boundary_staging", "boundary staging", Turn::slots},
    {PoolKind::host_saved_activations, Tier::host, "host_saved_activations", "saved activations",
     Turn::none},
    {PoolKind::saved_activation_staging, Tier::host, "saved_activation_staging",
     "saved activation staging", Turn::slots},
    {PoolKind::host_parameters, Tier::host, "host_parameters", "parameters", Turn::none},
    {PoolKind::host_stash, Tier::host, "host_stash", "stashed parameters", Turn::none},
    {PoolKind::host_frozen, Tier::host, "host_frozen", "frozen parameters", Turn::none},
    {PoolKind::secondary_parameters, Tier::host, "secondary_parameters", "secondary parameters",
     Turn::none},
    {PoolKind::host_state, Tier::host, "host_state", "optimizer state", Turn::none},
    {PoolKind::state_staging, Tier::host, "state_staging", "state staging", Turn::none},
    {PoolKind::checksums, Tier::host, "checksums", "checksums", Turn::none},
    {PoolKind::host_tokens, Tier::host, "host_tokens", "token ids", Turn::none},
    {PoolKind::host_leaves, Tier::host, "host_leaves", "norm leaves and loss sums", Turn::none},
    {PoolKind::gathered_leaves, Tier::host, "gathered_leaves", "norm leaves of all ranks",
     Turn::none},
    {PoolKind::disk_boundaries, Tier::nvme, "disk_boundaries", "boundary activations", Turn::none},
    {PoolKind::disk_saved_activations, Tier::nvme, "disk_saved_activations", "saved activations",
     Turn::none},
    {PoolKind::disk_state, Tier::nvme, "disk_state", "state, two slots", Turn::none},
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

}  // namespace

const PoolRule& rule_of(PoolKind pool) { return kPools[static_cast<std::size_t>(pool)]; }
std::string_view name_of(ValueKind kind) { return kValues[static_cast<std::size_t>(kind)]; }

std::string to_text(const Buffer& buffer) {
  if (buffer.count == 1) return fmt::format("{} {}", name_of(buffer.pool), buffer.first);
  return fmt::format("{} {}..{}", name_of(buffer.pool), buffer.first,
                     buffer.first + buffer.count - 1);
}

}  // namespace spillway::plan
