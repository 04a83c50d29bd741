#include "runtime/engine/embedded/gradients/gradient_counts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/plan/embedded_plan.hpp"

namespace spillway::engine {

GradientCounts::GradientCounts(const EmbeddedOptions& options, const EmbeddedLayout& layout)
    : options_(options),
      layout_(layout),
      received_(layout.ranges.size()),
      missing_(layout.workload.blocks.size()) {
  forget();
}

void GradientCounts::check_room(std::uint32_t parameter) const {
  const std::uint32_t most = options_.gradients_per_step;
  const Lock lock(mutex_);
  check(most == 0 || received_[parameter] < most, ErrorCode::invalid_argument,
        fmt::format("\"{}\" has had {} of its {} gradients of this step; call step, or say how "
                    "many a step has (gradients_per_step)",
                    layout_.names[parameter], received_[parameter], most));
}

GradientCounts::Turn GradientCounts::take(std::uint32_t parameter) {
  const Lock lock(mutex_);
  any_ = true;
  return received_[parameter]++ == 0 ? Turn::first : Turn::later;
}

bool GradientCounts::land(std::uint32_t parameter) {
  const Lock lock(mutex_);
  std::uint64_t& missing = missing_[layout_.ranges[parameter].block];
  return missing > 0 && --missing == 0;
}

bool GradientCounts::any() const {
  const Lock lock(mutex_);
  return any_;
}

bool GradientCounts::any(std::uint32_t parameter) const {
  const Lock lock(mutex_);
  return received_[parameter] > 0;
}

void GradientCounts::check_complete() const {
  if (options_.missing_gradient != MissingGradient::refuse) return;
  const std::uint32_t least = passes_of_step(options_);
  const Lock lock(mutex_);
  const auto missing = std::ranges::find_if(received_, [&](auto n) { return n < least; });
  if (missing == received_.end()) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("\"{}\" has {} of the {} gradients of this step; run backward for it, leave "
                  "parameters without gradients out, or ask for zeros (missing_gradient)",
                  layout_.names[static_cast<std::size_t>(missing - received_.begin())], *missing,
                  least));
}

std::vector<bool> GradientCounts::skipped() const {
  if (options_.missing_gradient != MissingGradient::skip) return {};
  const Lock lock(mutex_);
  std::vector<bool> skipped;
  if (std::ranges::find(received_, 0U) == received_.end()) return skipped;
  for (const std::uint32_t count : received_) skipped.push_back(count == 0);
  return skipped;
}

void GradientCounts::forget() {
  const Lock lock(mutex_);
  std::ranges::fill(received_, 0);
  any_ = false;
  // Where nobody says how many there will be, `step` completes them.
  for (std::size_t block = 0; block < missing_.size(); ++block) {
    missing_[block] = std::uint64_t{layout_.parameters[block]} * options_.gradients_per_step;
  }
}

void GradientCounts::forget(std::uint32_t parameter) {
  const Lock lock(mutex_);
  if (options_.gradients_per_step > 0) {
    missing_[layout_.ranges[parameter].block] += received_[parameter];
  }
  received_[parameter] = 0;
}

}  // namespace spillway::engine
