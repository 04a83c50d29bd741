#include "runtime/plan/buffers.hpp"

#include <fmt/format.h>

#include <array>

namespace spillway::plan {
namespace {

constexpr std::array<std::string_view, kPoolCount> kPools{
    "resident_parameters",
    "stashed_parameters",
    "whole_parameters",
    "parameter_slots",
    "parameter_shards",
    "frozen_slots",
    "resident_frozen",
    "device_state",
    "accumulators",
    "rounded_gradients",
    "gradient_shards",
    "tied_parameters",
    "tied_accumulators",
    "device_gradients",
    "device_leaves",
    "device_sums",
    "boundaries",
    "boundary_gradients",
    "boundary_slots",
    "recomputed_boundary",
    "kept_activations",
    "kept_activation_slots",
    "recomputation_scratch",
    "between_tiles",
    "own_rows",
    "gathered_rows",
    "gathered_gradients",
    "vocabulary_scans",
    "gathered_scans",
    "workspace",
    "constants",
    "device_tokens",
    "device_losses",
    "logits",
    "host_gradients",
    "landing_gradients",
    "host_boundaries",
    "boundary_staging",
    "host_kept_activations",
    "kept_staging",
    "host_parameters",
    "host_stash",
    "host_frozen",
    "secondary_parameters",
    "host_state",
    "state_staging",
    "checksums",
    "host_tokens",
    "host_sums",
    "gathered_sums",
    "disk_boundaries",
    "disk_kept_activations",
    "disk_state",
};

constexpr std::array<std::string_view, kValueKindCount> kValues{
    "parameters",          "frozen",   "state",          "checksum",    "gradient_sum",
    "tied_gradient_sum",   "gradient", "total_gradient", "norm_leaves", "activation",
    "activation_gradient", "saved",    "scanned",        "normal",      "gathered_scans",
    "between_tiles",       "tokens",   "loss",           "logits",      "scratch",
};

}  // namespace

std::string_view name_of(PoolKind pool) { return kPools[static_cast<std::size_t>(pool)]; }
std::string_view name_of(ValueKind kind) { return kValues[static_cast<std::size_t>(kind)]; }

std::string to_text(const Buffer& buffer) {
  if (buffer.count == 1) return fmt::format("{} {}", name_of(buffer.pool), buffer.first);
  return fmt::format("{} {}..{}", name_of(buffer.pool), buffer.first,
                     buffer.first + buffer.count - 1);
}

}  // namespace spillway::plan
