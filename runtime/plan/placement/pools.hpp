// Pools: how large the buffers of a placement are, in one place: for the memory table, for the
// memory that a run allocates and for the search of a placement, which changes one block at a time.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/plan/buffers.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/placement/pool_table.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Bytes of so many elements.
[[nodiscard]] inline Bytes bytes_of(ElementCount count, DType dtype) {
  return Bytes{count.value() * size_of(dtype)};
}

/// The buffers of a pool, one behind the other.
struct Pool {
  std::vector<std::uint64_t> ends;  ///< by buffer: the byte behind it

  [[nodiscard]] std::uint64_t offset(std::uint32_t buffer) const {
    return buffer == 0 ? 0 : ends[buffer - 1];
  }
  [[nodiscard]] Bytes bytes() const { return Bytes{ends.empty() ? 0 : ends.back()}; }
};
using Pools = std::array<Pool, kPoolCount>;

/// Returns the pools of a placement.
[[nodiscard]] Pools make_pools(const Workload& workload, const Placement& placement);
/// Returns the pools with only the buffers that a plan needs: the ones its ops name, the constants,
/// and the place of its losses on the host.
[[nodiscard]] Pools used_by(const StepPlan& plan, Pools pools);
/// Returns the lines of these pools in the memory table.
[[nodiscard]] std::vector<MemoryItem> memory_items(const Pools& pools);

/// A set of pools, a bit for each.
using PoolSet = std::uint64_t;
static_assert(kPoolCount <= 64);
[[nodiscard]] constexpr PoolSet set_of(PoolKind pool) {
  return PoolSet{1} << static_cast<unsigned>(pool);
}

/// The shares of blocks, wherever they are placed; of one workload, tile size and state format.
class PoolSizes {
 public:
  struct Block {
    std::array<Bytes, kPoolCount> shares{};  ///< of the pools of blocks; others: 0
    /// The pools in which it has bytes if that part of it is in that place (CutSet); for what has
    /// bytes anyway, all.
    using ByPlace = std::array<PoolSet, kPlaces>;
    ByPlace parameters{}, gradients{}, state{}, output{}, saved{};
    std::uint32_t padded_index = 0;  ///< place of its parameters among all sizes that occur
    std::uint32_t saved_index = 0;   ///< the same of what it saves; the head saves nothing
    bool starts_layer = false;       ///< and another layer reads the output of its layer
    bool output_waits = false;       ///< for a backward: Workload::output_waits
    bool operator==(const Block&) const = default;
  };

  /// Computes the shares. `commits`: as in Placement. The workload outlives this.
  PoolSizes(const Workload& workload, StateFormat format, ElementCount tile_parameters,
            bool commits);

  /// Returns the pools of blocks in which a block that is placed so has bytes.
  [[nodiscard]] PoolSet pools_of(std::uint32_t block, const BlockCut& cut) const {
    const auto place = [](Tier tier) { return static_cast<std::size_t>(tier); };
    const Block& b = blocks_[block];
    return b.parameters[place(cut.parameters)] & b.gradients[place(cut.gradients)] &
           b.state[place(cut.state)] & b.output[place(cut.output)] &
           b.saved[cut.saved ? place(*cut.saved) : kPlaces - 1];
  }
  [[nodiscard]] bool has_share(PoolKind pool, std::uint32_t block, const BlockCut& cut) const {
    return (pools_of(block, cut) & set_of(pool)) != 0;
  }
  /// Bytes of one of the buffers in a block's share: of a tile of so many parameters, or of a
  /// micro-batch.
  [[nodiscard]] Bytes buffer_bytes(PoolKind pool, std::uint32_t block, ElementCount tile) const {
    return rule_of(pool).size({.sizes = *this, .block = block, .elements = tile});
  }
  /// Whether what the block saves leaves the device.
  [[nodiscard]] bool saved_leaves(std::uint32_t block, const BlockCut& cut) const {
    return cut.saved.value_or(Tier::device) != Tier::device && saved(block) > Bytes{};
  }

  [[nodiscard]] const Workload& workload() const { return *workload_; }
  [[nodiscard]] const Block& block(std::uint32_t b) const { return blocks_[b]; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(blocks_.size()); }
  [[nodiscard]] std::span<const std::uint64_t> padded_sizes() const { return padded_sizes_; }
  [[nodiscard]] std::span<const std::uint64_t> saved_sizes() const { return saved_sizes_; }
  [[nodiscard]] ElementCount gradient_slot() const { return gradient_slot_; }
  [[nodiscard]] const NarrowSlots& narrow_slots() const { return narrow_slots_; }
  [[nodiscard]] Bytes frozen_slot() const { return frozen_slot_; }
  [[nodiscard]] StateFormat format() const { return format_; }
  [[nodiscard]] ElementCount tile_parameters() const { return tile_parameters_; }
  [[nodiscard]] bool commits() const { return commits_; }
  /// Bytes that a block saves; the head saves nothing.
  [[nodiscard]] Bytes saved(std::uint32_t block) const;

 private:
  [[nodiscard]] Bytes share(PoolKind pool, std::uint32_t block) const;

  const Workload* workload_;
  StateFormat format_;
  ElementCount tile_parameters_;
  bool commits_;
  std::vector<Block> blocks_;
  std::vector<std::uint64_t> padded_sizes_, saved_sizes_;  // that occur, ascending
  ElementCount gradient_slot_;
  NarrowSlots narrow_slots_;
  Bytes frozen_slot_;
};

/// Number of buffers of a pool whose buffers take turns, that of tiles' vectors not counted.
[[nodiscard]] std::uint32_t slots_of(PoolKind pool, const Workload& workload,
                                     const Placement& placement);

/// Buffers of one size, and one of another size before and behind them, each left out if it has no
/// bytes.
struct Row {
  Bytes first{};
  std::uint64_t count = 0;
  Bytes each{};
  Bytes last{};
  [[nodiscard]] Bytes bytes() const { return first + each * count + last; }
};

/// Returns the buffers of a pool that do not belong to blocks.
[[nodiscard]] Row row_of(PoolKind pool, const PoolSizes& sizes, const Placement& placement,
                         const Strides& strides);

}  // namespace spillway::plan
