// MemorySums: what the blocks of a placement add up to in memory, kept up to date while single
// blocks change. Pure; a search that tries many placements changes one and asks again, where
// `make_pools` looks at every buffer.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/plan/placement/pools.hpp"

namespace spillway::plan {

/// A multiset of sizes that knows the largest of them. A size is given by its index among all that
/// can occur, in ascending order.
class SizeCounts {
 public:
  explicit SizeCounts(std::size_t sizes) : counts_(sizes) {}
  void add(std::uint32_t index);
  void remove(std::uint32_t index);
  /// Returns the largest of the sizes; 0 where there is none. `sizes`: all that can occur.
  [[nodiscard]] std::uint64_t largest(std::span<const std::uint64_t> sizes) const {
    return end_ == 0 ? 0 : sizes[end_ - 1];
  }

 private:
  std::vector<std::uint32_t> counts_;  ///< by index
  std::size_t end_ = 0;                ///< behind the index of the largest that is there
};

/// `sizes` outlives this object.
class MemorySums {
 public:
  MemorySums(const PoolSizes& sizes, const Placement& placement);

  void add(std::uint32_t block, const BlockCut& cut);
  void remove(std::uint32_t block, const BlockCut& cut);

  [[nodiscard]] const PoolSizes& sizes() const { return *sizes_; }
  /// Bytes of all blocks' shares of a pool.
  [[nodiscard]] Bytes share_of(PoolKind pool) const {
    return shares_[static_cast<std::size_t>(pool)];
  }
  /// Bytes of all blocks' shares of the pools of a tier: no more than it takes.
  [[nodiscard]] Bytes share_of(Tier tier) const {
    return tier_shares_[static_cast<std::size_t>(tier)];
  }
  /// Returns what the blocks need of the buffers that they share.
  [[nodiscard]] Strides strides() const;

 private:
  /// Whether the rounds of some block's gradients are summed on the host.
  [[nodiscard]] bool sums_on_host() const;
  template <class Sum, class Count>
  void apply(std::uint32_t block, const BlockCut& cut, const Sum& sum, const Count& count);

  const PoolSizes* sizes_;
  std::array<Bytes, kPoolCount> shares_{};
  std::array<Bytes, 3> tier_shares_{};  ///< by tier
  SizeCounts streamed_, recomputed_, leaving_, staged_;
};

/// Bytes of `tier` that `placement` takes; `sums` has been made of its blocks.
[[nodiscard]] Bytes memory_total(const Placement& placement, const MemorySums& sums, Tier tier);

}  // namespace spillway::plan
