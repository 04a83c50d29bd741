// What makes an op list correct, told independently of the builder: from each op the buffers that
// the engine touches for it (runtime/engine/op_actions.cpp), then two questions of the list.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/placement.hpp"
#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

enum class BufferKind : std::uint8_t {
  parameter_slot,   ///< slot
  resident,         ///< block
  host_parameters,  ///< tile
  accumulator,      ///< gradient slot
  rounded,          ///< gradient slot; the accumulator itself at fp32
  tied_accumulator,
  landing,              ///< gradient slot
  host_gradient,        ///< tile
  device_gradient,      ///< tile
  device_state,         ///< tile
  host_state,           ///< tile
  staging,              ///< staging slot
  disk,                 ///< tile
  checksum,             ///< tile, in memory
  norm_leaves,          ///< tile
  boundary,             ///< block, micro-batch
  boundary_gradient,    ///< micro-batch
  boundary_slot,        ///< device slot
  recomputed_boundary,  ///< scratch
  host_boundary,        ///< block, micro-batch
  parked_boundary,      ///< micro-batch
  boundary_staging,     ///< staging slot
  disk_boundary,        ///< block, micro-batch
  saved,                ///< layer, micro-batch; of a block that is not kept: the shared scratch
  saved_slot,           ///< device slot
  host_saved,           ///< block, micro-batch
  carried,              ///< micro-batch
  workspace,
  tokens,    ///< micro-batch
  loss_sum,  ///< round, micro-batch
};

struct Buffer {
  BufferKind kind{};
  std::uint32_t index = 0;
  std::uint32_t micro_batch = 0;
  auto operator<=>(const Buffer&) const = default;
};

struct Access {
  Buffer buffer;
  bool writes = false;
};

/// The circumstances of one run of a plan.
struct RunOf {
  const Workload& workload;
  const Placement& placement;
  bool training = true;  ///< a backward follows: kept activations are saved
  bool pending = true;   ///< ops marked `if_pending` are performed
  bool warm = false;     ///< staging is as the step before left it: reads marked `held` are not
};

[[nodiscard]] bool performed(const RunOf& run, const Op& op);
[[nodiscard]] std::vector<Access> accesses_of(const RunOf& run, const Op& op);

/// Empty, or the first two ops that touch one buffer, at least one writing, without an order
/// between them. Order comes from dependencies and from the serial lanes gpu, h2d, d2h and cpu;
/// disk operations of one lane may pass each other, and a skipped op orders nothing.
[[nodiscard]] std::string find_race(const StepPlan& plan, const RunOf& run);

/// Empty, or the first op that, run in list order, finds something else in a buffer than what it
/// needs: another block, an old version, a sum that lacks a micro-batch or a round, another tile.
/// Without races every order that the lanes may take gives what list order gives.
[[nodiscard]] std::string find_wrong_content(const StepPlan& plan, const RunOf& run);

}  // namespace spillway::plan
