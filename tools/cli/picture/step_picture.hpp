// What a picture of a planned step shows: its lanes as a timeline, how full its memory is, what
// bounds it and what would make it faster. Documents for programs and for the page of page.hpp.
// Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/prepare/planned.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::cli {

/// An op, or several of one name that follow each other closely, as a bar of a lane.
struct Bar {
  std::string_view name;
  double start = 0;  ///< seconds from the start of the step
  double end = 0;
  std::uint32_t ops = 1;
};

/// Joins bars of one name where no eye could part them, so that a lane of a step of `seconds` has a
/// few thousand of them at most. Returns them by their start.
[[nodiscard]] std::vector<Bar> joined(std::vector<Bar> bars, double seconds);
/// Returns [name, start, end, ops] for each bar.
[[nodiscard]] nlohmann::ordered_json to_json(std::span<const Bar> bars);

/// Returns the picture of the step: `step_seconds`, `lanes` (with bars, busy, exposed and critical
/// seconds, and the tokens a step from which on the lane is no longer than the device's), `kinds`
/// (seconds and number of ops by name), `memory` (of each tier the budget, what is taken, and what
/// is in use over the step, by line of the memory table) and `doubling` (the step's seconds with
/// twice of each resource).
[[nodiscard]] nlohmann::ordered_json step_picture(const engine::Planned& planned,
                                                  const plan::StepPlan& step);

}  // namespace spillway::cli
