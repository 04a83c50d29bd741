// Kinds of blocks: those that need the same memory and do the same work wherever their data waits.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/predict/price.hpp"

namespace spillway::plan::detail {

/// What blocks need: the work of the lanes, and the bytes of each tier that are theirs alone.
struct Need {
  LaneWork work;
  std::array<double, 3> bytes{};  ///< by tier

  Need& operator+=(const Need& other);
  Need& operator*=(double factor);
};

/// Blocks of one shape and one cut, in their order.
struct BlockGroup {
  BlockCut cut;
  std::vector<std::uint32_t> blocks;
};

/// Borrows the sizes, whose workload has no tiles.
class BlockKinds {
 public:
  /// `placement` has the format, order and tiles of all that is asked about.
  BlockKinds(const PoolSizes& sizes, const Placement& placement);

  /// Returns the groups of a placement.
  [[nodiscard]] std::vector<BlockGroup> groups_of(const Placement& placement) const;
  /// Returns those of the cuts, each with the parts in which this group has no data as they are,
  /// that a step can run and that differ from the group's.
  [[nodiscard]] std::vector<BlockCut> others(const BlockGroup& group,
                                             const std::vector<BlockCut>& cuts) const;
  /// Returns what one block needs.
  [[nodiscard]] Need need_of(std::uint32_t block, const BlockCut& cut);

 private:
  [[nodiscard]] bool alike(std::uint32_t a, std::uint32_t b) const;
  /// Whether they are alike but for where their outputs wait.
  [[nodiscard]] bool of_one_shape(std::uint32_t a, std::uint32_t b) const;

  const PoolSizes* sizes_;
  Placement scratch_;
  std::vector<std::uint32_t> kinds_;                           ///< by block
  std::vector<std::uint32_t> samples_;                         ///< by kind: its first block
  std::vector<std::vector<std::pair<BlockCut, Need>>> known_;  ///< by kind
};

}  // namespace spillway::plan::detail
