// The device that the engine's tests train on. The same tests make two programs: engine_test on the
// host backend, engine_gpu_test on a GPU.
#pragma once

#include "runtime/config/train_options.hpp"

namespace spillway::engine {

/// Set before the first test, by gpu_environment.cpp where that is linked.
inline config::DeviceKind& device_under_test() {
  static config::DeviceKind device = config::DeviceKind::host;
  return device;
}

/// Whether that is the emulated CUDA, on which large shapes take hours.
[[nodiscard]] bool device_is_emulated();

}  // namespace spillway::engine
