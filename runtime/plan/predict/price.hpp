// The price of a cut: what each lane has to do for a block in one step, and from that a time that
// no step of a placement can beat, without a plan of its ops. Pure.
#pragma once

#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Bytes or FLOPs of each lane.
struct LaneWork {
  double flops = 0, gpu_bytes = 0, up = 0, down = 0, cpu = 0, net = 0, node = 0, tensor = 0,
         read = 0, written = 0;

  LaneWork& operator+=(const LaneWork& other);
  LaneWork& operator*=(double factor);
};

/// Returns the work of the block's cut in one step: on the link, the edges that it severs; on each
/// processor, its nodes; also what passes between ranks, and what disk tiers read and write.
[[nodiscard]] LaneWork work_of(const Workload& workload, const Placement& placement,
                               std::uint32_t block);

/// Returns the work of the cuts of all blocks.
[[nodiscard]] LaneWork work_of_blocks(const Workload& workload, const Placement& placement);

/// Returns the seconds that the busiest lane of a step of the workload takes at least for so much.
[[nodiscard]] double least_seconds(const Workload& workload, const LaneWork& work,
                                   const MachineProfile& profile);

/// Lower bound of `simulate(build_training_step(workload, placement), profile).step_seconds`. A
/// lane without a rate counts as instant.
[[nodiscard]] double least_step_seconds(const Workload& workload, const Placement& placement,
                                        const MachineProfile& profile);

}  // namespace spillway::plan
