// How often parameters were updated, and the update of a step.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/cycle.hpp"
#include "runtime/engine/update_decision.hpp"

namespace spillway::engine {

bool EmbeddedCycle::decide(std::span<const cpu_adam::AdamOptions> groups, double norm,
                           const EmbeddedStep& step, const std::vector<bool>& skipped) {
  check(state_.updates < std::numeric_limits<std::uint64_t>::max(), ErrorCode::invalid_argument,
        fmt::format("parameters were updated {} times, and no more can be counted: set fewer "
                    "updates",
                    state_.updates));
  ++state_.step;
  begins_step_ = true;
  const double clip = clip_factor(norm, step.max_norm);
  pending_.pending = norm * clip <= std::numeric_limits<float>::max();
  if (!pending_.pending) {
    ++state_.skipped;
    return false;
  }
  ++state_.updates;
  const double scale = clip / step.gradient_divisor;
  pending_.groups.clear();
  pending_.parts.clear();
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    if (skipped.empty() || !skipped[i]) ++updates_[i];
  }
  if (std::ranges::adjacent_find(updates_, std::ranges::not_equal_to{}) != updates_.end() ||
      std::ranges::find(skipped, true) != skipped.end()) {
    decide_apart(groups, scale, skipped);
    return true;
  }
  for (cpu_adam::AdamOptions group : groups) {
    group.rounding_seed = options().seed;
    pending_.groups.push_back(cpu_adam::make_scalars(group, updates_.front(), scale));
  }
  return true;
}

/// Decides the update of each parameter by itself.
void EmbeddedCycle::decide_apart(std::span<const cpu_adam::AdamOptions> groups, double scale,
                                 const std::vector<bool>& skipped) {
  pending_.parts.resize(workload().blocks.size());
  for (const std::uint32_t parameter : in_order_) {
    const EmbeddedPlace& place = layout_.places[parameter];
    const BlockGroups& of_block = layout_.groups[place.block];
    const auto part = std::ranges::find_if(
        of_block, [&](const GroupPart& each) { return place.first < each.end; });
    cpu_adam::AdamOptions group = groups[part->group];
    group.rounding_seed = options().seed;
    pending_.parts[place.block].push_back(
        {.end = round_up(place.first + place.count, kLeafParameters),
         .scalars =
             cpu_adam::make_scalars(group, std::max<std::uint64_t>(updates_[parameter], 1), scale),
         .skips = !skipped.empty() && skipped[parameter]});
  }
}

void EmbeddedCycle::set_updates(std::uint64_t updates) {
  state_.updates = updates;
  std::ranges::fill(updates_, updates);
}

void EmbeddedCycle::set_updates(std::uint32_t parameter, std::uint64_t updates) {
  updates_[parameter] = updates;
  state_.updates = std::ranges::max(updates_);
}

}  // namespace spillway::engine
