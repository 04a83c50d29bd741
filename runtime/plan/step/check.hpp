// Checks a step plan by what its ops declare, in every circumstance in which it may run. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/plan/step_plan.hpp"

namespace spillway::plan {

/// Returns nothing, or names the first two ops that use one buffer, at least one of them writing,
/// without an order between them. Order comes from dependencies and from serial lanes; a skipped op
/// orders nothing.
[[nodiscard]] std::string find_race(const StepPlan& plan);

/// Returns nothing, or names the first op that, run in list order, finds another value in a buffer
/// than the one that it declares. Without races, every order that the lanes may take has the same
/// result.
[[nodiscard]] std::string find_wrong_content(const StepPlan& plan);

/// Returns nothing, or names what a list of a pipeline that stays full expects of a round in flight
/// although no list has left it. The lists run in a row, the one that fills the pipeline first;
/// each step has `rounds` rounds.
[[nodiscard]] std::string find_lost_round(std::span<const StepPlan> lists, std::uint32_t rounds);

}  // namespace spillway::plan
