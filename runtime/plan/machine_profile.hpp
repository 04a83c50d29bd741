// What the machine can do, measured once: the simulator's and the planner's view of the hardware.
// Plain data, filled by a measurement or from a file.
#pragma once

#include <cstdint>

#include "runtime/base/units.hpp"

namespace spillway::plan {

/// Parts of the cores that lanes of a host backend take while they work. Those that work at once
/// and want more than all cores slow each other: each keeps the same fraction of its own rate.
struct CoreShares {
  double compute = 0;  ///< FWD-BWD; 0: on a device of its own, and no lane slows it
  double update = 0;
  double copy = 0;  ///< one direction of the copies to and from the device
  double disk = 0;  ///< reads or writes
};

/// A rate in the faster and in the slower quarter of its measurements, relative to their median.
struct Pace {
  double fast = 1;
  double slow = 1;
  bool operator==(const Pace&) const = default;
};

/// How much the measurements of a machine differ among each other.
struct Paces {
  Pace compute;  ///< of `gpu_flops`
  Pace link;
  Pace update;
  Pace disk;
  bool operator==(const Paces&) const = default;
};

/// What state on disk costs beside its transfers. 0: nothing.
struct DiskCosts {
  double checksum = 0;        ///< bytes a second of which all workers make checksums
  double commit_seconds = 0;  ///< of a commit, beside the writes before it
};

/// Sustained rates: bytes per second unless named otherwise. A rate of 0 means "not measured": it
/// is an error to use a lane without a rate. A combined rate of 0 means "no mutual slowdown"
/// instead. Measure each rate the way a step uses it: pinned memory and slot-sized copies for the
/// link, tile-sized O_DIRECT transfers for the disk, the fused pass with all its workers for
/// `update`, blocks at the model's shapes for `gpu_flops`. A combined rate is the sum of both
/// directions while both run.
struct MachineProfile {
  double gpu_flops = 0;  ///< effective FLOP/s of FWD-BWD at this compute dtype
  double h2d = 0;
  double d2h = 0;
  double h2d_d2h_combined = 0;  ///< both directions at once, summed
  double update = 0;            ///< DRAM bytes of the update pass (theory: 28 a parameter for fp32)
  /// Device-memory bytes of element-wise passes on the device (accumulate, an update on the GPU).
  /// 0: such ops take no time of the gpu lane, and the device cannot run the update.
  double gpu_update = 0;
  double net = 0;         ///< what a rank sends to others, while they send as much
  double net_node = 0;    ///< the same among the ranks of a node; 0: as `net`
  double net_tensor = 0;  ///< the same among the ranks of a tensor group; 0: as `net`
  double nvme_read = 0;
  double nvme_write = 0;
  double nvme_combined = 0;  ///< reads and writes at once, summed
  DiskCosts disk{};
  double op_overhead_seconds = 0;  ///< fixed cost of one op
  double wake_seconds = 0;         ///< of an op whose lane has waited for another: two threads wake
  CoreShares cores{};
  Paces paces{};
};

/// Returns the machine as it is while each of its rates is that of one quarter.
[[nodiscard]] MachineProfile at_pace(MachineProfile profile, double Pace::*quarter);

[[nodiscard]] inline double node_rate(const MachineProfile& profile) {
  return profile.net_node > 0 ? profile.net_node : profile.net;
}
[[nodiscard]] inline double tensor_rate(const MachineProfile& profile) {
  return profile.net_tensor > 0 ? profile.net_tensor : profile.net;
}

/// The memory that the planner may fill.
struct Budgets {
  Bytes device;
  Bytes host;
  Bytes nvme;
};
/// The budget of a tier that nothing limits. Two of them can be added.
inline constexpr Bytes kUncounted{~std::uint64_t{0} >> 1};

}  // namespace spillway::plan
