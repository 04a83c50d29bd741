// The step is data: the moves and computations of a training step, as ops with dependencies.
//
// One list, many readers: the engine runs it, the simulator predicts it, the trace names its ops.
// Ops of one lane start in list order. An op starts when its dependencies, all of which stand
// before it in the list, are complete. An op names the buffers that it reads and writes, and its
// dependencies follow from them: a buffer is used again only by an op that waits for its last user,
// so "double buffering" is the number of a pool's buffers and not a class.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/units.hpp"
#include "runtime/plan/buffers.hpp"
#include "runtime/plan/ranks.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

enum class OpKind : std::uint8_t {
  copy,      ///< from a buffer to one in another tier; `Op::copied` says what
  forward,   ///< one block, one micro-batch
  backward,  ///< one block, one micro-batch, recomputation included
  /// The head: forward, loss and (when training) backward of one micro-batch. Of a tile: its part
  /// of the loss, or, where it writes a gradient, its part of the backward. The logits alone, where
  /// it writes those. Of a tensor group: one of the passes of model::LossPass.
  loss,
  /// Finish a round's gradient of a block on the device: round its sum to the compute dtype and,
  /// where the device sums rounds, add it to earlier ones. Texts call this and the next one
  /// `accumulate`; the lane tells which.
  round_gradient,
  add_gradient,  ///< on the host: add what has come of a round's gradient to earlier rounds
  grad_norm,     ///< sum of squares of a tile's gradients
  update,        ///< Adam of one tile, and its 16-bit parameters
  checksum,      ///< of a tile's slot that goes to disk from memory; an update makes its own
  commit,        ///< make the step true on disk
  stash,         ///< keep the parameters of a block that its pending update is about to change
  // Collectives, which all ranks start in the order of the list. They read what this rank gives
  // and write what it gets.
  all_gather,      ///< the parts of all ranks, one after the other
  reduce_scatter,  ///< this rank's part of the sum
  all_reduce,      ///< the sum
  all_to_all,      ///< this rank's part of what each rank gives, one after the other
  // Between the stages of a pipeline, which start them in one order.
  send,
  receive,
};

/// `external` has the passes that another framework runs: its calls say when each is over.
enum class Lane : std::uint8_t { gpu, h2d, d2h, cpu, net, nvme_read, nvme_write, external };
inline constexpr std::size_t kLaneCount = 8;
inline constexpr std::size_t kMachineLanes = 7;  ///< that this program uses itself

/// What a copy carries from one tier to another. Gradients of parameters, of one round or of all,
/// are `gradient`; activations between layers and their gradients are `boundary`.
struct Copy {
  ValueKind what{};
  Tier from{};
  Tier to{};
  bool operator==(const Copy&) const = default;
};
inline constexpr Copy kUploadParams{ValueKind::parameters, Tier::host, Tier::device};
inline constexpr Copy kKeepParams{ValueKind::parameters, Tier::device, Tier::host};
inline constexpr Copy kUploadFrozen{ValueKind::frozen, Tier::host, Tier::device};
inline constexpr Copy kReadFrozen{ValueKind::frozen, Tier::nvme, Tier::host};
inline constexpr Copy kDownloadGrads{ValueKind::gradient, Tier::device, Tier::host};
inline constexpr Copy kReadState{ValueKind::state, Tier::nvme, Tier::host};
inline constexpr Copy kStageState{ValueKind::state, Tier::device, Tier::host};
inline constexpr Copy kWriteState{ValueKind::state, Tier::host, Tier::nvme};
inline constexpr Copy kSaveBoundary{ValueKind::boundary, Tier::device, Tier::host};
inline constexpr Copy kLoadBoundary{ValueKind::boundary, Tier::host, Tier::device};
inline constexpr Copy kSpillBoundary{ValueKind::boundary, Tier::host, Tier::nvme};
inline constexpr Copy kFetchBoundary{ValueKind::boundary, Tier::nvme, Tier::host};
inline constexpr Copy kSaveActivations{ValueKind::saved, Tier::device, Tier::host};

std::string_view name_of(OpKind kind);
std::string_view name_of(Lane lane);

using OpIndex = std::uint32_t;

struct Op {
  OpKind kind{};
  Lane lane{};
  Copy copied{};  ///< of a copy; what a message carries, or a tensor group adds up or gathers
  RankGroup group = RankGroup::replicas;  ///< of a collective or a message
  std::uint32_t peer = 0;                 ///< peer stage of a send or receive
  std::uint32_t block = 0;
  std::uint32_t tile = 0;  ///< of this rank's (`make_tiles`), for tile ops
  std::uint32_t round = 0;
  std::uint32_t micro_batch = 0;  ///< within the round
  /// For a copy of state from the disk: whether the step before leaves the tile in the slot. The
  /// copy reads only where it has not.
  bool held = false;
  /// Part of an update ahead of its decision, as if nothing were clipped.
  bool speculative = false;
  bool if_pending = false;  ///< part of the previous step's update: skipped when none is pending
  Bytes bytes;              ///< moved by the op on its lane; of a collective: sent by this rank
  Bytes checksummed;        ///< by the update of a tile on disk: what was read, and what is written
  double flops = 0;
  std::uint32_t first_access = 0;  ///< into StepPlan::accesses
  std::uint32_t access_count = 0;
  std::uint32_t first_dependency = 0;  ///< into StepPlan::dependencies
  std::uint32_t dependency_count = 0;
};

/// A slice of a block: the unit of update, of state I/O and of checksums.
struct Tile {
  std::uint32_t block = 0;
  ElementCount first;  ///< parameter index in the block
  ElementCount count;  ///< a multiple of kLeafParameters
};

/// A set of the circumstances in which a plan may run, a bit for each: an update is pending and
/// staging is empty (the lowest), one is pending and staging is as the step before left it, none is
/// pending.
using Circumstances = std::uint8_t;
inline constexpr std::size_t kCircumstances = 3;
inline constexpr Circumstances kAllCircumstances = 0b111;
inline constexpr Circumstances kUpdatePending = 0b011;
inline constexpr Circumstances kStagingNotKept = 0b101;  ///< all but staging as it was left
/// Returns the circumstances in which the op is not skipped.
[[nodiscard]] constexpr Circumstances performed_in(const Op& op) {
  const Circumstances held = op.held ? kStagingNotKept : kAllCircumstances;
  return op.if_pending ? held & kUpdatePending : held;
}
/// Whether ops of the lane run one after the other in list order; disk operations and the passes of
/// another framework do not.
[[nodiscard]] constexpr bool is_serial(Lane lane) { return lane < Lane::nvme_read; }
inline constexpr std::size_t kSerialLanes = 5;

struct StepPlan {
  /// Number of rounds with data in memory when the list starts: those in flight, plus one with only
  /// its forward input. 0 unless the pipeline stays full.
  std::uint32_t rounds_found = 0;
  std::vector<Op> ops;
  std::vector<Access> accesses;
  std::vector<OpIndex> dependencies;

  [[nodiscard]] std::span<const Access> accesses_of(const Op& op) const {
    return {accesses.data() + op.first_access, op.access_count};
  }

  [[nodiscard]] std::span<const OpIndex> dependencies_of(const Op& op) const {
    return {dependencies.data() + op.first_dependency, op.dependency_count};
  }
};

/// Whether the op is a copy of that sort.
[[nodiscard]] constexpr bool is_copy(const Op& op, const Copy& copied) {
  return op.kind == OpKind::copy && op.copied == copied;
}
/// Returns the name of an op's kind, or of what it copies where.
std::string_view name_of(const Op& op);
/// Bytes that copies of one sort move in one run of the plan, of many in a row.
[[nodiscard]] Bytes bytes_moved(const StepPlan& plan, const Copy& copied);
/// Returns the wanted ops of a plan and the dependencies among them.
[[nodiscard]] StepPlan only(const StepPlan& plan, const std::function<bool(const Op&)>& wanted);
/// Whether the op is one of FWD-BWD.
[[nodiscard]] constexpr bool is_model_op(const Op& op) {
  return op.kind == OpKind::forward || op.kind == OpKind::backward || op.kind == OpKind::loss;
}
/// Lists the ops, one a line, for golden files and people.
[[nodiscard]] std::string to_text(const StepPlan& plan);

}  // namespace spillway::plan
