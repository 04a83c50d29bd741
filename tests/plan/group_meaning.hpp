// What the passes and collectives of a tensor group must find and leave: part of the second telling
// of op_meaning.hpp.
#pragma once

#include <compare>
#include <cstdint>
#include <set>

#include "tests/plan/op_meaning.hpp"

namespace spillway::plan {

struct Need {
  Value value;
  bool writes;
  auto operator<=>(const Need&) const = default;
};
using Needs = std::set<Need>;

/// Returns how many ops of a round add to the sum of a block's gradients: one for each micro-batch,
/// and in a group another one for the norm, and one that adds up what all its ranks have.
[[nodiscard]] std::uint32_t writers_of_gradient(const Workload& workload, std::uint32_t block);

/// Returns what an op needs that is a collective of a group or a pass of its model, the `visit`-th
/// of a micro-batch through the block. Whose needs are none, what it declares is wrong.
[[nodiscard]] Needs needs_of_group(const RunOf& run, const Op& op, int visit);

}  // namespace spillway::plan
