#include "runtime/engine/embedded/update/updates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "cpu_adam/adam.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/training/update_decision.hpp"

namespace spillway::engine {

EmbeddedUpdates::EmbeddedUpdates(EmbeddedOptions& options, const EmbeddedLayout& layout,
                                 StepCycle& cycle)
    : options_(options), layout_(layout), cycle_(cycle), counts_(layout.ranges.size()) {}

const cpu_adam::AdamOptions& EmbeddedUpdates::group(std::uint32_t group) const {
  check_number("group", group, options_.groups.size());
  return options_.groups[group];
}

void EmbeddedUpdates::set_group(std::uint32_t group, const cpu_adam::AdamOptions& wanted) {
  check(wanted.optimizer == this->group(group).optimizer, ErrorCode::invalid_argument,
        fmt::format("the optimizer of group {} cannot change; make a new trainer", group));
  static_cast<void>(cpu_adam::make_scalars(wanted, 1, 1));
  options_.groups[group] = wanted;
}

bool EmbeddedUpdates::decide(double norm, const EmbeddedStep& step,
                             const std::vector<bool>& skipped) {
  TrainingState state = cycle_.state();
  check(state.updates < std::numeric_limits<std::uint64_t>::max(), ErrorCode::invalid_argument,
        fmt::format("parameters were updated {} times, and no more can be counted: set fewer "
                    "updates",
                    state.updates));
  const double clip = clip_factor(norm, step.max_norm);
  std::vector<std::uint64_t> counts = counts_;
  // decide_update asks only whether the norm is finite: it takes back its own loss scale, and
  // finite gradients stay finite. The divisor of a caller may make them overflow fp32.
  const bool updates = norm * clip <= std::numeric_limits<float>::max();
  if (updates) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (skipped.empty() || !skipped[i]) ++counts[i];
    }
    make_update(clip / step.gradient_divisor, counts, skipped, cycle_.next_update());
  }
  ++state.step;
  ++(updates ? state.updates : state.skipped);
  // Nothing is counted, and no update is pending, before the last call that can throw.
  counts_ = std::move(counts);
  cycle_.next_update().pending = updates;
  cycle_.decide(state);
  return updates;
}

cpu_adam::UpdateScalars EmbeddedUpdates::scalars_of(std::uint32_t group, std::uint64_t updates,
                                                    double scale) const {
  cpu_adam::AdamOptions options = options_.groups[group];
  options.rounding_seed = options_.seed;
  return cpu_adam::make_scalars(options, updates, scale);
}

/// Decides the update of all groups, or of each parameter by itself where they differ: in how often
/// they were updated, this time included, or in whether they are.
void EmbeddedUpdates::make_update(double scale, std::span<const std::uint64_t> counts,
                                  const std::vector<bool>& skipped, PendingUpdate& update) const {
  update.groups.clear();
  update.overrides.clear();
  if (std::ranges::adjacent_find(counts, std::ranges::not_equal_to{}) == counts.end() &&
      std::ranges::find(skipped, true) == skipped.end()) {
    for (std::uint32_t group = 0; group < options_.groups.size(); ++group) {
      update.groups.push_back(scalars_of(group, counts.front(), scale));
    }
    return;
  }
  update.overrides.resize(layout_.workload.blocks.size());
  for (const std::uint32_t parameter : layout_.order) {
    const ParameterRange& range = layout_.ranges[parameter];
    const std::uint64_t updates = std::max<std::uint64_t>(counts[parameter], 1);
    update.overrides[range.block].push_back(
        {.end = round_up(range.first + range.count, kLeafParameters),
         .scalars = scalars_of(group_of(layout_, range), updates, scale),
         .skips = !skipped.empty() && skipped[parameter]});
  }
}

void EmbeddedUpdates::set_counts(std::uint64_t updates) {
  std::ranges::fill(counts_, updates);
  amend_updates();
}

void EmbeddedUpdates::set_count(std::uint32_t parameter, std::uint64_t updates) {
  counts_[parameter] = updates;
  amend_updates();
}

void EmbeddedUpdates::amend_updates() {
  TrainingState state = cycle_.state();
  state.updates = std::ranges::max(counts_);
  cycle_.amend(state);
}

}  // namespace spillway::engine
