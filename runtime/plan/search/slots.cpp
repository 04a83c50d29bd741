#include "runtime/plan/search/slots.hpp"

#include <algorithm>

namespace spillway::plan::detail {
namespace {

using Counts = std::vector<std::uint32_t>;

/// Returns numbers from the most to the least: the first two, and then ever half as many.
Counts downwards(std::uint32_t most, std::uint32_t least) {
  Counts counts{most};
  if (most > least) counts.push_back(most - 1);
  for (std::uint32_t half = most / 2; half > least; half /= 2) {
    if (half < counts.back()) counts.push_back(half);
  }
  if (counts.back() > least) counts.push_back(least);
  return counts;
}

bool any_saved_leaves(const Draft& draft) {
  for (std::uint32_t b = 0; b < draft.size(); ++b) {
    if (draft.sizes().saved_leaves(b, draft.block(b))) return true;
  }
  return false;
}

/// Numbers for each pool.
struct Ranges {
  Counts parameters, gradients, boundaries, saved;
};

Ranges ranges_of(const Draft& draft, const PlacementRequest& request) {
  const Placement& placement = draft.placement();
  const Workload& workload = draft.sizes().workload();
  const std::uint32_t blocks = prefetch_of(request, workload) + 1;
  const std::uint32_t least = least_parameter_slots(workload, placement);
  const bool one_at_a_time = placement.order == WorkOrder::micro_batch_major;
  const bool downloads = placement.any_state(Tier::host) || placement.any_state(Tier::nvme);
  const bool passes = placement.any_output(Tier::host) || placement.any_output(Tier::nvme);
  const bool leaves = any_saved_leaves(draft);
  const std::uint32_t leaving = 2 * (one_at_a_time ? 1 : workload.micro_batches);
  const bool streams = any_streamed(workload, placement);
  return {.parameters =
              streams ? downwards(std::max(blocks, least), least) : Counts{std::max(blocks, least)},
          .gradients = one_at_a_time ? Counts{draft.size()} : downwards(downloads ? 2 : 1, 1),
          .boundaries = passes ? downwards(2 * blocks, 1) : Counts{0},
          .saved = leaves ? downwards(leaving, 2) : Counts{0}};
}

/// Whether the draft fits, if need be with fewer buffers of state that is read ahead.
bool fits(Draft& draft) {
  if (!draft.fits(Tier::device)) return false;
  while (!draft.fits(Tier::host)) {
    if (draft.placement().state_slots == 1) return false;
    draft.adjust([](Placement& placement) { --placement.state_slots; });
  }
  return draft.fits(Tier::nvme);
}

bool is_no_more(const Slots& a, const Slots& b) {
  return a.parameters <= b.parameters && a.gradients <= b.gradients &&
         a.boundaries <= b.boundaries && a.saved <= b.saved;
}

}  // namespace

void take(Draft& draft, const Slots& slots) {
  draft.adjust([&](Placement& placement) {
    placement.parameter_slots = slots.parameters;
    placement.gradient_slots = slots.gradients;
    placement.boundary_slots = slots.boundaries;
    placement.boundary_staging = placement.any_output(Tier::nvme) ? slots.boundaries : 0;
    placement.saved_slots = slots.saved;
    placement.saved_staging = placement.any_saved(Tier::nvme) ? 2 : 0;
    placement.state_slots = slots.state;
  });
}

std::vector<Slots> fitting_slots(Draft& draft, const PlacementRequest& request) {
  const Placement& placement = draft.placement();
  const bool staged = placement.any_state(Tier::device) || placement.any_state(Tier::nvme);
  const std::uint32_t state = staged ? Placement().state_slots : 1;
  const auto [all_parameters, all_gradients, all_boundaries, all_saved] = ranges_of(draft, request);
  std::vector<Slots> fitting;
  for (const std::uint32_t parameters : all_parameters) {
    for (const std::uint32_t gradients : all_gradients) {
      for (const std::uint32_t boundaries : all_boundaries) {
        for (const std::uint32_t saved : all_saved) {
          Slots slots{parameters, gradients, boundaries, saved, state};
          const auto no_more = [&](const Slots& other) { return is_no_more(slots, other); };
          if (std::ranges::any_of(fitting, no_more)) continue;
          take(draft, slots);
          if (!fits(draft)) continue;
          slots.state = placement.state_slots;
          fitting.push_back(slots);
        }
      }
    }
  }
  return fitting;
}

}  // namespace spillway::plan::detail
