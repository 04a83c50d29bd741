// How the blocks of a placement are cut, and for each kind of block the next best cut with the
// reason why it was not chosen. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/placement/block_cut.hpp"
#include "runtime/plan/search/fastest.hpp"

namespace spillway::plan {

/// Among all other cuts of these blocks, the one with which a step takes the least time by the sums
/// of its lanes; of equals, the one that moves the least over the link.
struct NextBest {
  BlockCut cut;
  std::optional<Shortage> lacks{};  ///< the first tier that it does not fit into; else:
  double step_seconds = 0;          ///< by the simulator
  Lane busier = Lane::gpu;          ///< the lane that has the most more to do
  double busier_seconds = 0;
  Bytes device;  ///< what the whole placement takes with it
};

/// The cut that a number of blocks of one kind share.
struct CutReport {
  std::string_view kind;  ///< embedding, layers or head
  std::uint32_t blocks = 0;
  BlockCut cut;
  std::string text;  ///< the cut in words, for the first of the blocks
  Bytes link;        ///< what they move over the link in a step, both ways
  std::optional<NextBest> next{};
};

/// Reports on the cuts of `step`, in the order of the blocks. The next best cut is one that the
/// request leaves open; it uses the disk only if the placement does.
[[nodiscard]] std::vector<CutReport> report_cuts(const Workload& workload, const Budgets& budgets,
                                                 const PlacementRequest& request,
                                                 const MachineProfile& profile,
                                                 const PlannedStep& step);

}  // namespace spillway::plan
