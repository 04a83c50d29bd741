// How often parameters were updated, and the update of a step.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/cycle.hpp"
#include "runtime/engine/training/update_decision.hpp"

namespace spillway::engine {

bool EmbeddedCycle::decide(std::span<const cpu_adam::AdamOptions> groups, double norm,
                           const EmbeddedStep& step, const std::vector<bool>& skipped) {
  TrainingState& state = cycle_.state();
  check(state.updates < std::numeric_limits<std::uint64_t>::max(), ErrorCode::invalid_argument,
        fmt::format("parameters were updated {} times, and no more can be counted: set fewer "
                    "updates",
                    state.updates));
  const double clip = clip_factor(norm, step.max_norm);
  std::vector<std::uint64_t> updates = updates_;
  PendingUpdate next{.pending = norm * clip <= std::numeric_limits<float>::max(), .groups = {}};
  if (next.pending) {
    for (std::size_t i = 0; i < updates.size(); ++i) {
      if (skipped.empty() || !skipped[i]) ++updates[i];
    }
    make_update(groups, clip / step.gradient_divisor, updates, skipped, next);
  }
  // Nothing is counted before the last call that can throw.
  record_.end_step();
  ++state.step;
  ++(next.pending ? state.updates : state.skipped);
  updates_ = std::move(updates);
  cycle_.update() = std::move(next);
  return has_pending();
}

/// Decides the update of all groups, or of each parameter by itself where they differ: in how often
/// they were updated, this time included, or in whether they are.
void EmbeddedCycle::make_update(std::span<const cpu_adam::AdamOptions> groups, double scale,
                                const std::vector<std::uint64_t>& updates,
                                const std::vector<bool>& skipped, PendingUpdate& update) const {
  if (std::ranges::adjacent_find(updates, std::ranges::not_equal_to{}) == updates.end() &&
      std::ranges::find(skipped, true) == skipped.end()) {
    for (cpu_adam::AdamOptions group : groups) {
      group.rounding_seed = engine_.options().seed;
      update.groups.push_back(cpu_adam::make_scalars(group, updates.front(), scale));
    }
    return;
  }
  update.overrides.resize(engine_.workload().blocks.size());
  for (const std::uint32_t parameter : layout_.order) {
    const ParameterRange& range = layout_.ranges[parameter];
    cpu_adam::AdamOptions group = groups[group_of(layout_, range)];
    group.rounding_seed = engine_.options().seed;
    update.overrides[range.block].push_back(
        {.end = round_up(range.first + range.count, kLeafParameters),
         .scalars =
             cpu_adam::make_scalars(group, std::max<std::uint64_t>(updates[parameter], 1), scale),
         .skips = !skipped.empty() && skipped[parameter]});
  }
}

void EmbeddedCycle::set_updates(std::uint64_t updates) {
  cycle_.state().updates = updates;
  std::ranges::fill(updates_, updates);
}

void EmbeddedCycle::set_updates(std::uint32_t parameter, std::uint64_t updates) {
  updates_[parameter] = updates;
  cycle_.state().updates = std::ranges::max(updates_);
}

}  // namespace spillway::engine
