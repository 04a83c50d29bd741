// What the machine can do, measured once: the simulator's and the planner's view of the hardware.
#pragma once

#include "runtime/base/units.hpp"

namespace spillway::plan {

/// Sustained rates. Bytes per second unless named otherwise.
struct MachineProfile {
  double gpu_flops = 0;           ///< effective FLOP/s of FWD-BWD at this compute dtype
  double h2d = 0;
  double d2h = 0;
  double h2d_d2h_combined = 0;    ///< both directions at once, summed
  double update = 0;              ///< DRAM bytes of the update pass (theory: 28 a parameter for fp32)
  double nvme_read = 0;
  double nvme_write = 0;
  double nvme_combined = 0;       ///< reads and writes at once, summed
  double op_overhead_seconds = 0; ///< fixed cost of one op
  bool cpu_shares_gpu = false;    ///< host backend: the update and FWD-BWD divide the same cores
};

/// Memory that the planner may fill.
struct Budgets {
  Bytes device;
  Bytes host;
  Bytes nvme;
};

}  // namespace spillway::plan
