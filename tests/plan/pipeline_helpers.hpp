// What tests of pipelines share: how figures draw passes, passes that take equally long, and an
// executor in which a send waits for its receive.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/plan/pipeline/timeline.hpp"

namespace spillway::plan {

/// Time in which the stages run nothing, over the time in which they run: (stages - 1) / rounds
/// where all passes take equally long (Narayanan et al. 2021, section 2.2).
inline double bubble_of(const Timeline& timeline) {
  double runs = 0;
  for (const std::vector<PassTime>& stage : timeline) {
    for (const PassTime& pass : stage) runs += pass.end - pass.start;
  }
  return seconds_of(timeline) * static_cast<double>(timeline.size()) / runs - 1;
}

/// Returns, for each stage, the most forward passes whose backward has not run.
inline std::vector<std::uint32_t> most_in_flight(const std::vector<std::vector<Pass>>& passes) {
  std::vector<std::uint32_t> most;
  most.reserve(passes.size());
  for (const std::vector<Pass>& of_stage : passes) {
    std::uint32_t in_flight = 0;
    std::uint32_t& largest = most.emplace_back(0);
    for (const Pass& pass : of_stage) {
      pass.direction == Direction::forward ? ++in_flight : --in_flight;
      largest = std::max(largest, in_flight);
    }
  }
  return most;
}

/// All passes take as long as others of their direction; a stage's take one and two in all.
inline std::vector<StageSeconds> even(const Pipeline& p) {
  return {p.stages,
          {std::vector<double>(p.chunks, 1.0 / p.chunks),
           std::vector<double>(p.chunks, 2.0 / p.chunks)}};
}

/// Writes passes as the figures do: rounds from 1; backward in brackets; chunks after the first
/// primed.
inline std::string drawn(const std::vector<Pass>& passes) {
  std::string text;
  for (const Pass& pass : passes) {
    const std::string mark = fmt::format("{}{}", pass.round + 1, std::string(pass.chunk, '\''));
    text += pass.direction == Direction::forward ? mark : "(" + mark + ")";
    text += ' ';
  }
  return text;
}

/// Runs steps on stages of which each ends a step before it begins the next, and where a message is
/// over when both its stages have come to it. Returns whether all come to their end, each message
/// with the pass that was meant.
inline bool ends(const Pipeline& p, const std::vector<std::vector<StageEntry>>& steps) {
  using Kind = StageEntry::Kind;
  const auto part = [&](std::uint32_t stage, const Pass& pass) {
    return pass.chunk * p.stages + stage;
  };
  std::vector<std::size_t> at(p.stages);
  const auto next = [&](std::uint32_t stage) {
    return at[stage] < steps[stage].size() ? &steps[stage][at[stage]] : nullptr;
  };
  for (bool any = true; any;) {
    any = false;
    for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
      const StageEntry* const step = next(stage);
      if (step == nullptr || step->kind == Kind::receive) continue;
      if (step->kind == Kind::send) {
        const StageEntry* const other = next(step->peer);
        if (other == nullptr || other->kind != Kind::receive || other->peer != stage) continue;
        const bool forward = step->pass.direction == Direction::forward;
        EXPECT_EQ(other->pass.direction, step->pass.direction);
        EXPECT_EQ(other->pass.round, step->pass.round);
        const std::uint32_t made = part(stage, step->pass);
        const std::uint32_t read = part(step->peer, other->pass);
        EXPECT_EQ(forward ? made + 1 : read + 1, forward ? read : made);
        ++at[step->peer];
      }
      ++at[stage];
      any = true;
    }
  }
  for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
    if (at[stage] < steps[stage].size()) return false;
  }
  return true;
}

}  // namespace spillway::plan
