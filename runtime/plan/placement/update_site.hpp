// Where the update of a block runs on a given machine: the partition, priced in seconds.
//
// The graph and the cuts are those of partition.hpp; only the price changes. If all data of the
// block fits into device memory that nothing else wants, the cut with no traffic at all wins and
// the update runs on the GPU. Otherwise each cut is priced by its slowest lane, so that a slow DRAM
// (or a fast link) can pull the update to the GPU while the state stays on the host. Pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"
#include "runtime/plan/dataflow_graph.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/partition.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

enum class UpdateSite : std::uint8_t {
  cpu,           ///< state on the host, updated there
  gpu_resident,  ///< everything stays in device memory
  gpu_streamed,  ///< some state on the host, brought to the GPU for the update and back
};

std::string_view name_of(UpdateSite site);

struct UpdateQuestion {
  ElementCount parameters{};  ///< of the block, padded
  StateFormat format = StateFormat::fp32;
  DType compute = DType::bf16;
  double fwd_bwd_flops = 0;  ///< of the block in one step, recomputation included
  std::uint32_t rounds = 1;
  Bytes free_device{};  ///< what nothing else wants: streaming slots are already taken off
};

/// Seconds that the block needs of each resource in one step.
struct BlockSeconds {
  double gpu = 0;  ///< FWD-BWD, and the update if it runs there
  double h2d = 0;
  double d2h = 0;
  double link = 0;  ///< both directions at the rate that they share
  double cpu = 0;   ///< the update if it runs there
  double slowest = 0;
};

struct UpdateDecision {
  UpdateSite site = UpdateSite::cpu;
  Cut cut{};  ///< of `fused_pass_graph`
  BlockSeconds seconds;
};

/// The best cut for the block: everything on the GPU if that fits, else the least `slowest`, then
/// the least traffic, then the most GPU memory saved. A device without `gpu_update` never updates.
/// Throws `Error{invalid_argument}` if the profile lacks a rate that the decision needs.
[[nodiscard]] UpdateDecision decide_update_site(const MachineProfile& profile,
                                                const UpdateQuestion& question);

/// "update on cpu, 1.20e-03 s (gpu ..., h2d ..., d2h ..., cpu ...); cut ..." without a line break.
[[nodiscard]] std::string to_text(const UpdateQuestion& question, const UpdateDecision& decision);

}  // namespace spillway::plan
