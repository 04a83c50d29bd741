#include "runtime/plan/buffers.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace spillway::plan {
namespace {

constexpr std::array<std::string_view, kValueKindCount> kValues{
    "parameters",        "frozen",   "state",          "checksum",    "gradient_sum",
    "tied_gradient_sum", "gradient", "total_gradient", "norm_leaves", "boundary",
    "boundary_gradient", "saved",    "scanned",        "normal",      "gathered_scans",
    "between_tiles",     "tokens",   "loss",           "logits",      "scratch",
};

/// What a pool is, whatever a placement makes of it.
struct PoolNames {
  PoolKind pool;
  Tier tier;
  std::string_view name;
  std::string_view label;
};
constexpr std::array<PoolNames, kPoolCount> kPoolNames{{
    {PoolKind::resident_parameters, Tier::device, "resident_parameters", "resident parameters"},
    {PoolKind::stashed_parameters, Tier::device, "stashed_parameters", "stashed parameters"},
    {PoolKind::whole_parameters, Tier::device, "whole_parameters", "gathered parameters"},
    {PoolKind::parameter_slots, Tier::device, "parameter_slots", "parameter slots"},
    {PoolKind::parameter_shards, Tier::device, "parameter_shards", "parameter shards"},
    {PoolKind::frozen_slots, Tier::device, "frozen_slots", "slots of frozen parameters"},
    {PoolKind::resident_frozen, Tier::device, "resident_frozen", "frozen parameters"},
    {PoolKind::device_state, Tier::device, "device_state", "optimizer state"},
    {PoolKind::accumulators, Tier::device, "accumulators", "gradient accumulators"},
    {PoolKind::rounded_gradients, Tier::device, "rounded_gradients", "rounded gradients"},
    {PoolKind::gradient_shards, Tier::device, "gradient_shards", "gradient shards"},
    {PoolKind::tied_parameters, Tier::device, "tied_parameters", "tied parameters"},
    {PoolKind::tied_accumulators, Tier::device, "tied_accumulators", "tied accumulator"},
    {PoolKind::device_gradients, Tier::device, "device_gradients", "waiting gradients"},
    {PoolKind::device_leaves, Tier::device, "device_leaves", "gradient norm leaves"},
    {PoolKind::device_sums, Tier::device, "device_sums", "sums of rounds"},
    {PoolKind::boundaries, Tier::device, "boundaries", "boundary activations"},
    {PoolKind::boundary_gradients, Tier::device, "boundary_gradients", "boundary gradients"},
    {PoolKind::boundary_slots, Tier::device, "boundary_slots", "boundary slots"},
    {PoolKind::recomputed_boundary, Tier::device, "recomputed_boundary", "recomputed boundary"},
    {PoolKind::saved_activations, Tier::device, "saved_activations", "saved activations"},
    {PoolKind::saved_activation_slots, Tier::device, "saved_activation_slots",
     "saved activation slots"},
    {PoolKind::recomputation_scratch, Tier::device, "recomputation_scratch",
     "recomputation scratch"},
    {PoolKind::between_tiles, Tier::device, "between_tiles", "between tiles"},
    {PoolKind::own_rows, Tier::device, "own_rows", "own rows"},
    {PoolKind::gathered_rows, Tier::device, "gathered_rows", "gathered rows"},
    {PoolKind::gathered_gradients, Tier::device, "gathered_gradients", "gathered gradients"},
    {PoolKind::vocabulary_scans, Tier::device, "vocabulary_scans", "vocabulary scans"},
    {PoolKind::gathered_scans, Tier::device, "gathered_scans", "scans of a tensor group"},
    {PoolKind::workspace, Tier::device, "workspace", "operator workspace"},
    {PoolKind::constants, Tier::device, "constants", "rotary tables"},
    {PoolKind::device_tokens, Tier::device, "device_tokens", "token ids"},
    {PoolKind::device_losses, Tier::device, "device_losses", "loss sums"},
    {PoolKind::logits, Tier::device, "logits", "logits"},
    {PoolKind::host_gradients, Tier::host, "host_gradients", "waiting gradients"},
    {PoolKind::landing_gradients, Tier::host, "landing_gradients", "landing gradients"},
    {PoolKind::host_boundaries, Tier::host, "host_boundaries", "boundary activations"},
    {PoolKind::boundary_staging, Tier::host, "boundary_staging", "boundary staging"},
    {PoolKind::host_saved_activations, Tier::host, "host_saved_activations", "saved activations"},
    {PoolKind::saved_activation_staging, Tier::host, "saved_activation_staging",
     "saved activation staging"},
    {PoolKind::host_parameters, Tier::host, "host_parameters", "parameters"},
    {PoolKind::host_stash, Tier::host, "host_stash", "stashed parameters"},
    {PoolKind::host_frozen, Tier::host, "host_frozen", "frozen parameters"},
    {PoolKind::secondary_parameters, Tier::host, "secondary_parameters", "secondary parameters"},
    {PoolKind::host_state, Tier::host, "host_state", "optimizer state"},
    {PoolKind::state_staging, Tier::host, "state_staging", "state staging"},
    {PoolKind::checksums, Tier::host, "checksums", "checksums"},
    {PoolKind::host_tokens, Tier::host, "host_tokens", "token ids"},
    {PoolKind::host_leaves, Tier::host, "host_leaves", "norm leaves and loss sums"},
    {PoolKind::gathered_leaves, Tier::host, "gathered_leaves", "norm leaves of all ranks"},
    {PoolKind::disk_boundaries, Tier::nvme, "disk_boundaries", "boundary activations"},
    {PoolKind::disk_saved_activations, Tier::nvme, "disk_saved_activations", "saved activations"},
    {PoolKind::disk_state, Tier::nvme, "disk_state", "state, two slots"},
}};

/// Whether each row stands where its pool's number says.
constexpr bool names_are_in_order() {
  for (std::size_t i = 0; i < kPoolCount; ++i) {
    if (static_cast<std::size_t>(kPoolNames[i].pool) != i) return false;
  }
  return true;
}
static_assert(names_are_in_order());

constexpr const PoolNames& names_of(PoolKind pool) {
  return kPoolNames[static_cast<std::size_t>(pool)];
}

}  // namespace

Tier tier_of(PoolKind pool) { return names_of(pool).tier; }
std::string_view name_of(PoolKind pool) { return names_of(pool).name; }
std::string_view label_of(PoolKind pool) { return names_of(pool).label; }
std::string_view name_of(ValueKind kind) { return kValues[static_cast<std::size_t>(kind)]; }

std::string to_text(const Buffer& buffer) {
  if (buffer.count == 1) return fmt::format("{} {}", name_of(buffer.pool), buffer.first);
  return fmt::format("{} {}..{}", name_of(buffer.pool), buffer.first,
                     buffer.first + buffer.count - 1);
}

}  // namespace spillway::plan
