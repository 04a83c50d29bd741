// Which grids share out the ranks of a job, and which of them a step is quickest on: the estimates
// of estimate.hpp, in order. Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/grid/estimate.hpp"

namespace spillway::plan {

/// A grid with the cut, the stage of ZeRO and the home of activations that are best on it.
struct RankedGrid {
  GridChoice choice;
  GridMemory memory;
  GridSeconds seconds;
};

/// A rejected grid, with the reason; if memory is the reason, the choice that needs least.
struct DroppedGrid {
  GridChoice choice;
  double bytes = 0;  ///< needed; 0: the work does not divide
  std::string reason;
};

struct GridRanking {
  std::vector<RankedGrid> fitting;   ///< the quickest first
  std::vector<DroppedGrid> dropped;  ///< least memory first, then those that do not divide
};

/// How far a search goes.
struct GridSearch {
  std::uint32_t ranks = 1;
  bool across = false;         ///< tensor groups may have ranks of several machines
  bool one_dimension = false;  ///< only cuts that are 1-D
};

/// Sorts all grids of `search.ranks` ranks, tensor * replicas * stages, by their estimates.
[[nodiscard]] GridRanking rank_grids(const GridWork& work, const GridMachine& machine,
                                     const GridSearch& search);

}  // namespace spillway::plan
