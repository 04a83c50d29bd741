// What a device does in a second, measured with the run's own operators and kernels on one block's
// working set. Control thread only.
#pragma once

#include "runtime/engine/machine/calibrate.hpp"

namespace spillway::engine {

struct DeviceRates {
  double flops = 0;             ///< of FWD-BWD, over the whole model
  plan::Pace pace{};            ///< of `flops`
  double h2d = 0, d2h = 0;      ///< bytes
  double h2d_d2h_combined = 0;  ///< bytes of both directions while both run
  plan::Pace link_pace{};
  double update = 0;  ///< bytes of device memory of the fused update; 0: it has none of its own
};

/// Measures the device in the memory of one layer and one micro-batch, for which every placement
/// has room in the budgets; copies and updates are as large as the budgets allow.
[[nodiscard]] DeviceRates measure_device(const CalibrationRequest& request);

}  // namespace spillway::engine
