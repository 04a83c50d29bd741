// The device that FWD-BWD runs on: its backend, its operators and the optimizer's arithmetic on its
// memory, all chosen by one option. Control thread only.
#pragma once

#include <memory>
#include <string>

#include "offload/device_backend.hpp"
#include "runtime/base/wake_signal.hpp"
#include "runtime/engine/device_math.hpp"
#include "runtime/engine/train_options.hpp"
#include "runtime/model/ops.hpp"
#include "runtime/plan/machine_profile.hpp"

namespace spillway::engine {

/// cuda where this build has it and a GPU is usable, else the host.
[[nodiscard]] DeviceKind usable_device();

/// Operators that are ready to run. Throws `Error{not_supported}` that says why the device cannot.
[[nodiscard]] std::unique_ptr<model::Ops> make_ops(const TrainOptions& options);
/// Operators to plan with, which a machine without the device has too.
[[nodiscard]] std::unique_ptr<model::Ops> make_sizing_ops(const TrainOptions& options);

/// `wake` is notified by what completes on the host backend; it may be null.
[[nodiscard]] std::unique_ptr<offload::DeviceBackend> make_backend(const TrainOptions& options,
                                                                   const plan::Budgets& budgets,
                                                                   WakeSignal* wake);
[[nodiscard]] std::unique_ptr<DeviceMath> make_device_math(const TrainOptions& options,
                                                           offload::Stream& compute);

/// "host", or the GPU as its driver names it.
[[nodiscard]] std::string device_name(DeviceKind device);

/// What a run may take of the memory of a device that has memory of its own.
[[nodiscard]] Bytes free_device_memory();

}  // namespace spillway::engine
