// The ranks of a node: those in a row that share out a second copy of parameters.
#pragma once

#include <memory>
#include <vector>

#include "runtime/base/units.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

[[nodiscard]] std::vector<Rank> ranks_of_node(const plan::Ranks& part);

/// Returns this rank's end of a group of them, on the memory that `all` moves; null if there is no
/// such copy, or no `all`. Every rank calls it.
template <class Group>
[[nodiscard]] std::unique_ptr<Group> node_of(Group* all, const plan::Ranks& part) {
  if (all == nullptr || part.secondary == 1) return nullptr;
  return all->subgroup(ranks_of_node(part));
}

}  // namespace spillway::engine
