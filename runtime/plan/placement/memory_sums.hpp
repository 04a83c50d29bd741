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

/// A multiset of ranks that knows the largest of them.
class SizeCounts {
 public:
  explicit SizeCounts(std::size_t ranks) : counts_(ranks) {}
  void add(std::uint32_t rank);
  void remove(std::uint32_t rank);
  /// Returns the value of the largest rank in `values`; 0 where there is none.
  [[nodiscard]] std::uint64_t largest(std::span<const std::uint64_t> values) const {
    return end_ == 0 ? 0 : values[end_ - 1];
  }

 private:
  std::vector<std::uint32_t> counts_;
  std::size_t end_ = 0;  ///< behind the largest rank that is there
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
  /// Returns the buffers of a pool that do not belong to blocks.
  [[nodiscard]] Row row(PoolKind pool, const Placement& placement) const;

 private:
  template <class Sum, class Count>
  void apply(std::uint32_t block, const BlockCut& cut, const Sum& sum, const Count& count);

  const PoolSizes* sizes_;
  std::array<Bytes, kPoolCount> shares_{};
  SizeCounts streamed_, recomputed_, leaving_, staged_;
};

/// Bytes of `tier` that `placement` takes; `sums` has been made of its blocks.
[[nodiscard]] Bytes memory_total(const Placement& placement, const MemorySums& sums, Tier tier);

}  // namespace spillway::plan
