// The host backend: a heap "device" whose capacity is enforced to the byte, one worker thread a
// stream, optional link bandwidth. Everything above `offload` runs and is tested on it.
#pragma once

#include <memory>
#include <optional>

#include "offload/device_backend.hpp"
#include "runtime/base/wake_signal.hpp"

namespace spillway::offload {

struct HostBackendOptions {
  Bytes device_capacity;  ///< of the "device"; allocations beyond it fail
  Bytes pinned_capacity;  ///< of pinned host memory
  /// Limits each direction; absent: as fast as memcpy.
  std::optional<double> link_gigabytes_per_second = std::nullopt;
  WakeSignal* wake = nullptr;       ///< notified whenever a recorded event completes
  std::size_t stream_depth = 1024;  ///< queued entries a stream; submitting beyond it waits
};

[[nodiscard]] std::unique_ptr<DeviceBackend> make_host_backend(const HostBackendOptions& options);

}  // namespace spillway::offload
