// Buffers and values: the nouns of a step plan's memory. An op names the buffers that it reads and
// writes and the values that it finds and leaves there; nothing else knows what an op touches.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/plan/orders.hpp"

namespace spillway::plan {

/// A pool: buffers of one purpose in one tier, one line of the memory table.
///
/// Parameters, gradients of all rounds and optimizer state lie tile by tile in the order of the
/// model, so that those of a block are a range of buffers. Of many ranks, these are the tiles of
/// this rank's shards. A buffer that a placement does not use is empty.
enum class PoolKind : std::uint8_t {
  // Device.
  resident_parameters,  ///< by tile
  stashed_parameters,   ///< by version and tile: of `resident_parameters` before updates
  whole_parameters,     ///< by block, where tiles belong to a shard and parameters do not
  parameter_slots,      ///< each holds a streamed block
  parameter_shards,     ///< each holds this rank's part of a block on its way to the others
  frozen_slots,         ///< each holds the frozen tensors of a streamed block
  resident_frozen,      ///< one: frozen tensors that stay on the device
  device_state,         ///< by tile
  accumulators,         ///< fp32 sums over micro-batches. Slot 0 holds any block; the others are
                        ///< smaller (`NarrowSlots`); one more belongs to the vectors of tiles
  rounded_gradients,    ///< as `accumulators`, in the compute dtype
  gradient_shards,      ///< each holds this rank's part of a block's gradient, or of all ranks'
  tied_parameters,      ///< one: a tied head's copy of an embedding on another stage
  tied_accumulators,    ///< by block of the embedding, and by round in flight if the embedding is
                        ///< on another stage: the head's addend to its gradient
  device_gradients,     ///< by tile, where the device updates
  device_leaves,        ///< by tile: the sums of squares of its leaves
  device_sums,          ///< by tile, where rounds are summed for an update elsewhere
  boundaries,           ///< by layer and micro-batch
  boundary_gradients,   ///< by micro-batch
  boundary_slots,       ///< shared by boundaries that come and go
  recomputed_boundary,  ///< one: an output that recomputation writes and nobody reads
  saved_activations,    ///< by layer's first block and micro-batch
  saved_activation_slots,  ///< shared by saved activations that come and go
  recomputation_scratch,   ///< one, or with tiles by micro-batch
  between_tiles,           ///< by micro-batch; of a tensor group, what its ranks add up
  own_rows,            ///< by micro-batch: a rank's own tokens of a norm's output or its gradient
  gathered_rows,       ///< by micro-batch: a norm's output for the tokens of all ranks
  gathered_gradients,  ///< by micro-batch: a boundary gradient for the tokens of all ranks
  vocabulary_scans,    ///< by micro-batch: what a rank of a tensor group knows of each token
  gathered_scans,      ///< by micro-batch: the same of all ranks of the group
  workspace,           ///< one
  constants,           ///< one: tables that operators read
  device_tokens,       ///< by micro-batch
  device_losses,       ///< by round and micro-batch
  logits,              ///< one: of every position of a micro-batch, fp32
  // Host.
  host_gradients,            ///< by tile
  landing_gradients,         ///< as `rounded_gradients`
  host_boundaries,           ///< by layer and micro-batch
  boundary_staging,          ///< each holds a boundary in whole pages
  host_saved_activations,    ///< by layer's first block and micro-batch
  saved_activation_staging,  ///< each holds saved activations in whole pages
  host_parameters,           ///< by tile
  host_stash,                ///< by version and tile: of `host_parameters` before updates
  host_frozen,               ///< by block
  frozen_staging,            ///< each holds what is frozen of a block, in whole pages
  secondary_parameters,      ///< by block: this rank's part of what its node has gathered
  host_state,                ///< by tile
  state_staging,             ///< each holds a tile's slot
  checksums,                 ///< by tile: of its next write to disk; 0 bytes, it only orders ops
  host_tokens,               ///< by round and micro-batch
  host_leaves,               ///< by tile: as `device_leaves`; the last holds all losses
  gathered_leaves,           ///< by rank: its `host_leaves`
  // NVMe.
  disk_frozen,             ///< by block
  disk_boundaries,         ///< by layer and micro-batch
  disk_saved_activations,  ///< by layer's first block and micro-batch
  disk_state,              ///< by tile, both slots
};
inline constexpr std::size_t kPoolCount = static_cast<std::size_t>(PoolKind::disk_state) + 1;

[[nodiscard]] Tier tier_of(PoolKind pool);               ///< by its row (pool_table.hpp), as names
[[nodiscard]] std::string_view name_of(PoolKind pool);   ///< in the text of a plan
[[nodiscard]] std::string_view label_of(PoolKind pool);  ///< its line in the memory table

/// A buffer of a pool, or several in a row.
struct Buffer {
  PoolKind pool{};
  std::uint32_t first = 0;
  std::uint32_t count = 1;
  auto operator<=>(const Buffer&) const = default;
};

enum class ValueKind : std::uint8_t {
  parameters,         ///< of a block, in the compute dtype
  frozen,             ///< of a block: parameters that nothing updates, in any dtype
  state,              ///< of a tile
  checksum,           ///< of a tile's state after the update
  gradient_sum,       ///< of a block and a round, fp32; the parts are its additions: those of
                      ///< micro-batches, then those of norms and the sum over a tensor group
  tied_gradient_sum,  ///< of a block and a round: what a tied head adds to its gradient's sum
  gradient,           ///< of a block and a round, in the compute dtype
  total_gradient,     ///< a block's gradients summed over rounds 0 to `round`; kLastStep: the
                      ///< previous step's whole gradient
  norm_leaves,        ///< of a tile
  boundary,           ///< of a layer: its output; the parts are its tiles
  boundary_gradient,  ///< of a layer: of its output
  saved,              ///< of a layer: what its backward needs; the parts are its tiles
  scanned,            ///< of the head: its loss so far; the parts are its tiles
  normal,             ///< of a layer: its norm's output
  gathered_scans,     ///< of the head: what each rank of a tensor group knows of it
  between_tiles,      ///< of a layer: what backward leaves the tile before; parts: its tiles
  tokens,
  loss,
  logits,
  scratch,  ///< nothing that another op reads
};
inline constexpr std::size_t kValueKindCount = 20;
inline constexpr std::uint32_t kLastStep = ~0U;
/// Age of parameters and state that have an update which is not decided yet.
inline constexpr std::uint16_t kAhead = 0xffff;

/// How much a rank has of what ranks share out.
enum class Extent : std::uint8_t {
  whole,      ///< all that the op works on
  shard,      ///< this rank's part: of a block, or of the tokens of a norm's output
  secondary,  ///< this rank's part of a block in the copy that its node keeps
  addend,     ///< what this rank adds to a sum over its tensor group
  gathered,   ///< the tokens of all ranks of a tensor group, where a rank works on its own
};

/// What a buffer holds.
struct Value {
  ValueKind kind = ValueKind::scratch;
  /// A block, tile or layer, as the kind says; of several buffers in a row that hold values of
  /// tiles, the first tile.
  std::uint32_t of = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t round = 0;
  std::uint32_t part = 0;  ///< of a value made in parts: the last one present
  Extent extent = Extent::whole;
  std::uint16_t age = 0;  ///< of parameters and state: updates that they lack, the pending one too
  auto operator<=>(const Value&) const = default;
};

/// One buffer that an op reads or writes, and the value that it finds or leaves there.
struct Access {
  Buffer buffer;
  Value value;
  bool writes = false;
  bool operator==(const Access&) const = default;
};

std::string_view name_of(ValueKind kind);
/// Returns "parameter_slots 1", or "host_parameters 4..7" for a range.
std::string to_text(const Buffer& buffer);

}  // namespace spillway::plan
