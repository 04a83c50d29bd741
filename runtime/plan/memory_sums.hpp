// MemorySums: what the blocks of a placement add up to in memory, kept up to date while single
// blocks change. Pure; a search that tries many placements changes one and asks again, where
// `memory_items` looks at every block.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/plan/boundaries.hpp"
#include "runtime/plan/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// What each block takes wherever it is placed; of one workload, tile size and state format.
class BlockSizes {
 public:
  struct Block {
    ElementCount padded;
    Bytes state;                ///< of its tiles, in memory
    Bytes slots;                ///< of its tiles, one on disk each
    Bytes saved;                ///< `BlockShape::saved_bytes`; none of the head
    std::uint32_t padded_rank;  ///< place of `padded` among all sizes that occur, ascending
    std::uint32_t saved_rank;
    bool operator==(const Block&) const = default;
  };

  BlockSizes(const Workload& workload, StateFormat format, ElementCount tile_parameters);

  std::vector<Block> blocks;
  std::vector<std::uint64_t> padded_sizes;  ///< that occur, ascending
  std::vector<std::uint64_t> saved_sizes;
  ElementCount padded;         ///< of all blocks
  ElementCount gradient_slot;  ///< `gradient_slot_elements`
};

/// Ranks with their number, and the largest of them.
class RankCounts {
 public:
  explicit RankCounts(std::size_t ranks) : counts_(ranks) {}
  void add(std::uint32_t rank);
  void remove(std::uint32_t rank);
  /// The value of the largest rank in `values`; 0 where there is none.
  [[nodiscard]] std::uint64_t largest(const std::vector<std::uint64_t>& values) const {
    return end_ == 0 ? 0 : values[end_ - 1];
  }

 private:
  std::vector<std::uint32_t> counts_;
  std::size_t end_ = 0;  ///< behind the largest rank that is there
};

/// `sizes` outlives this.
class MemorySums {
 public:
  explicit MemorySums(const BlockSizes& sizes);
  MemorySums(const BlockSizes& sizes, const Placement& placement);

  void add(std::uint32_t block, const BlockPlacement& place);
  void remove(std::uint32_t block, const BlockPlacement& place);

  [[nodiscard]] const BlockSizes& sizes() const { return *sizes_; }
  [[nodiscard]] ElementCount resident() const { return resident_; }
  [[nodiscard]] ElementCount parameter_slot() const {
    return ElementCount{streamed_.largest(sizes_->padded_sizes)};
  }
  [[nodiscard]] Bytes state(Tier tier) const { return state_[index_of(tier)]; }
  /// Slots on disk of the blocks whose state lives there, and of all blocks.
  [[nodiscard]] Bytes slots_of_nvme() const { return nvme_slots_; }
  [[nodiscard]] Bytes all_slots() const { return all_slots_; }
  [[nodiscard]] ElementCount updated_on_device() const { return updated_on_device_; }
  [[nodiscard]] ElementCount updated_on_host() const { return sizes_->padded - updated_on_device_; }
  [[nodiscard]] ElementCount summed_on_device() const { return summed_on_device_; }
  /// Blocks whose activations have this home.
  [[nodiscard]] std::uint64_t with(BoundaryHome home) const {
    return homes_[static_cast<std::size_t>(home)];
  }
  // Internal activations of one micro-batch.
  [[nodiscard]] Bytes kept() const { return kept_; }            ///< that stay on the device
  [[nodiscard]] Bytes offloaded() const { return offloaded_; }  ///< that leave it
  [[nodiscard]] Bytes saved_slot() const { return Bytes{leaving_.largest(sizes_->saved_sizes)}; }
  [[nodiscard]] Bytes scratch() const { return Bytes{recomputed_.largest(sizes_->saved_sizes)}; }

 private:
  static std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }
  /// Both ways of a change: `sum` adds to a quantity or takes from it, `count` a rank.
  template <class Sum, class Count>
  void apply(std::uint32_t block, const BlockPlacement& place, const Sum& sum, const Count& count);

  const BlockSizes* sizes_;
  ElementCount resident_, updated_on_device_, summed_on_device_;
  std::array<Bytes, 3> state_{};
  Bytes nvme_slots_, all_slots_, kept_, offloaded_;
  std::array<std::uint64_t, 4> homes_{};
  RankCounts streamed_, recomputed_, leaving_;
};

using TierBytes = std::array<Bytes, 3>;  ///< by `Tier`

/// The totals of `memory_items`, of the placement whose blocks `sums` has.
[[nodiscard]] TierBytes memory_totals(const Workload& workload, const Placement& placement,
                                      const MemorySums& sums);

}  // namespace spillway::plan
