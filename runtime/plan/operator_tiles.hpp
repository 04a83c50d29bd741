// OperatorTiles: what excludes that layers run in tiles of their matrices.
#pragma once

#include <string_view>

#include "runtime/plan/orders.hpp"
#include "runtime/plan/ranks.hpp"

namespace spillway::plan {

/// Returns why `Workload::operator_tiles` is not possible on this grid of ranks, or with saved
/// activations that wait in that tier, and what to do; empty where they are possible.
[[nodiscard]] std::string_view why_no_operator_tiles(const Grid& grid, Tier saved = Tier::device);

}  // namespace spillway::plan
