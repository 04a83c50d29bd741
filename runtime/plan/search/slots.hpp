// Numbers of the buffers that take turns: as many as hide time, or fewer where memory is short.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/search/draft.hpp"

namespace spillway::plan::detail {

/// Slots of the pools; 0 where no block of the placement uses them.
struct Slots {
  std::uint32_t parameters = 1;
  std::uint32_t gradients = 1;
  std::uint32_t boundaries = 0;
  std::uint32_t saved = 0;
  std::uint32_t state = 1;  ///< of the host
};

/// Gives the draft these slots, and the staging that belongs to them.
void take(Draft& draft, const Slots& slots);

/// Returns the slots with which the draft's blocks fit every tier: those of which no others that
/// fit are as many in each pool. Leaves the draft with other slots.
[[nodiscard]] std::vector<Slots> fitting_slots(Draft& draft, const PlacementRequest& request);

}  // namespace spillway::plan::detail
