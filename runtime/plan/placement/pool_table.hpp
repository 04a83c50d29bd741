// The table of pools, a row for each: its tier and names, how its buffers follow each other, whose
// they are, how large they are and what a step finds in them. All code that treats pools by their
// kind reads it, so that a new pool is an enumerator and a row. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "runtime/plan/buffers.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

class PoolSizes;

/// How the buffers of a pool follow each other.
enum class PoolLayout : std::uint8_t {
  // What belongs to a block: it has its share of these, or none.
  tiles,     ///< by tile
  versions,  ///< by version of the weights and tile
  blocks,    ///< by block
  layers,    ///< by layer and micro-batch
  saved,     ///< by layer's first block and micro-batch
  // What blocks share.
  row,             ///< a number of them
  slots,           ///< taken in turn
  gradient_slots,  ///< likewise; as many as gradients may be on their way, in each of these pools
};

/// What a step finds in a pool that its own ops have not written.
enum class Found : std::uint8_t {
  nothing,
  rounds_in_flight,  ///< what is kept of rounds that the step before has begun
  staged_state,      ///< what was read ahead, where staging is filled
  everything,        ///< what any step before has left
};

/// Which runs whose passes another framework runs have buffers of a pool that blocks share.
enum class ExternalRuns : std::uint8_t { none, streamed, all };

/// What the blocks of a placement need of the buffers that they share: the most that any of them
/// needs of each, but for `lands`.
struct Strides {
  ElementCount streamed;  ///< parameters of a block that is streamed
  Bytes leaving;          ///< what a block saves that leaves the device
  Bytes staged;           ///< what a block saves that goes to the disk
  Bytes recomputed;       ///< what a block saves that is recomputed
  bool lands = false;     ///< gradients of some block are summed on the host
};

/// The buffer whose size is asked for. A pool reads what its layout gives.
struct SizedBuffer {
  const PoolSizes& sizes;
  std::uint32_t block = 0;  ///< of a pool of blocks
  ElementCount elements{};  ///< of a tile, or of a gradient in its slot
  Strides strides{};        ///< of what blocks share
};

/// Places of one part of a block, a bit for each tier; of what it saves, one more for none.
using Places = std::uint8_t;
inline constexpr Places kAnyPlace = 0xF;
inline constexpr std::size_t kPlaces = 4;
[[nodiscard]] constexpr Places place_of(Tier tier) {
  return static_cast<Places>(1U << static_cast<unsigned>(tier));
}

/// The ways to place a block: each of its parts in one of these places.
struct CutSet {
  Places parameters = kAnyPlace;
  Places gradients = kAnyPlace;
  Places state = kAnyPlace;
  Places output = kAnyPlace;
  Places saved = kAnyPlace;
};

/// A row of the table.
struct PoolRule {
  using Sharers = CutSet (*)(const PoolSizes& sizes, std::uint32_t block);
  using Count = std::uint64_t (*)(const Workload& workload, const Placement& placement);
  using Size = Bytes (*)(const SizedBuffer& buffer);

  PoolKind pool;
  Tier tier;
  std::string_view name;   ///< in the text of a plan
  std::string_view label;  ///< in the memory table
  PoolLayout layout;
  std::variant<Sharers, Count> owner;  ///< how a block is placed that has a share; or a number
  Size size;                           ///< of one buffer
  Found found = Found::nothing;
  ExternalRuns external = ExternalRuns::none;
  Size behind = nullptr;  ///< of one more buffer, behind those of blocks

  /// Whether buffers come and go while a list is built.
  [[nodiscard]] bool takes_turns() const { return layout >= PoolLayout::slots; }
};
[[nodiscard]] const PoolRule& rule_of(PoolKind pool);

/// Returns the pools whose buffers belong to blocks, in their order.
[[nodiscard]] std::span<const PoolKind> block_pools();
/// Returns the pools of a tier, in their order.
[[nodiscard]] std::span<const PoolKind> pools_in(Tier tier);

}  // namespace spillway::plan
