// What excludes that layers run in tiles of their matrices (Workload::tiled).
#pragma once

#include <string_view>

#include "runtime/plan/orders.hpp"
#include "runtime/plan/ranks.hpp"

namespace spillway::plan {

/// Returns why layers in tiles are not possible on this grid of ranks, or with saved activations
/// that wait in that tier, and what to do; empty where they are possible.
[[nodiscard]] std::string_view why_no_tiles(const Grid& grid, Tier saved = Tier::device);

}  // namespace spillway::plan
