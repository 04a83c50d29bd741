// The step is data: every move and computation of a training step, as ops with dependencies.
//
// One list, three consumers: the engine runs it, the simulator predicts it, the trace names it.
// Ops of one lane start in list order. An op starts when its dependencies, all of which stand
// before it in the list, are complete. Buffers are slots: a slot is reused only by an op that
// depends on the last user of the slot, so "double buffering" is a number and not a class.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/units.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

enum class OpKind : std::uint8_t {
  read_state,      ///< tile state to a staging slot: from disk, or (lane d2h) from the device
  write_state,     ///< tile state, staging slot (or host home) to the tile's spare slot on disk
  upload_params,   ///< block parameters, host to device slot (or resident home)
  download_grads,  ///< block gradients, device to host
  forward,         ///< one block, one micro-batch
  backward,        ///< one block, one micro-batch, recomputation included
  /// The head: forward, loss and (when training) backward of one micro-batch. Of a tile: without a
  /// gradient slot its part of the loss, with one its part of the backward.
  loss,
  accumulate,  ///< finish a round's gradient of a block: round to its dtype, add to earlier rounds
  grad_norm,   ///< sum of squares of a tile's gradients
  update,      ///< Adam of one tile, and its 16-bit parameters
  checksum,    ///< of a tile's slot that goes to disk from memory; an update makes its own
  save_activation,   ///< a boundary, device slot to host: its home, or staging
  load_activation,   ///< a boundary, host to device slot
  spill_activation,  ///< a boundary, staging to disk
  fetch_activation,  ///< a boundary, disk to staging
  save_internals,    ///< a block's kept activations, device slot to their home on the host
  load_internals,    ///< a block's kept activations, host to device slot
  commit,            ///< make the step true on disk
};
inline constexpr std::size_t kOpKindCount = 18;

enum class Lane : std::uint8_t { gpu, h2d, d2h, cpu, nvme_read, nvme_write };
inline constexpr std::size_t kLaneCount = 6;

std::string_view name_of(OpKind kind);
std::string_view name_of(Lane lane);
std::string_view name_of(Tier tier);

using OpIndex = std::uint32_t;
inline constexpr std::uint32_t kNoSlot = ~0U;

struct Op {
  OpKind kind{};
  Lane lane{};
  std::uint32_t block = 0;
  std::uint32_t tile = 0;  ///< of the model, for tile ops
  std::uint32_t round = 0;
  std::uint32_t micro_batch = 0;  ///< within the round
  /// Parameters (kNoSlot: the resident home), tile state (kNoSlot: its home in memory), or the
  /// staging buffer of a boundary (kNoSlot: its home on the host).
  std::uint32_t slot = kNoSlot;
  std::uint32_t tied_slot = kNoSlot;  ///< loss of a tied head: where block 0's parameters are
  /// fp32 accumulator of the block's visit; download_grads, kNoSlot: the sum of rounds.
  std::uint32_t gradient_slot = kNoSlot;
  // Device slots of boundaries; kNoSlot: the home of its own.
  std::uint32_t input_slot = kNoSlot;  ///< the activation that forward, loss and backward read
  /// Forward's output; the gradient that loss makes and backward changes; what is saved or loaded.
  std::uint32_t boundary_slot = kNoSlot;
  /// Device slot of kept activations: what forward computes, backward reads, save and load copy.
  std::uint32_t saved_slot = kNoSlot;  ///< kNoSlot: a home of its own, or none
  bool of_gradient = false;            ///< save and load: the gradient of the block's boundary
  bool again = false;  ///< forward of a tile in backward: recomputes what backward reads
  /// read_state: the step before has left the tile in the slot; read only where it has not.
  bool held = false;
  bool if_pending = false;  ///< part of the previous step's update: skipped when none is pending
  Bytes bytes;              ///< moved by the op on its lane
  double flops = 0;
  std::uint32_t first_dependency = 0;  ///< into StepPlan::dependencies
  std::uint32_t dependency_count = 0;
};

/// A slice of a block: the unit of update, of state I/O and of checksums.
struct Tile {
  std::uint32_t block = 0;
  ElementCount first;  ///< parameter index in the block
  ElementCount count;  ///< a multiple of kLeafParameters
};

struct StepPlan {
  std::vector<Op> ops;
  std::vector<OpIndex> dependencies;

  [[nodiscard]] std::span<const OpIndex> dependencies_of(const Op& op) const {
    return {dependencies.data() + op.first_dependency, op.dependency_count};
  }
};

/// Bytes that the ops of `kind` move in one run of the plan, of many in a row.
[[nodiscard]] Bytes bytes_moved(const StepPlan& plan, OpKind kind);
/// One line an op, for golden files and for people.
[[nodiscard]] std::string to_text(const StepPlan& plan);

}  // namespace spillway::plan
