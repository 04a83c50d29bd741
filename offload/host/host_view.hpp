// The host backend's device memory is host memory: how its tasks look into it. For `offload/host`
// and `runtime/model/host` only; on any other backend the address means nothing to the host.
#pragma once

#include <span>

#include "offload/device_span.hpp"

namespace spillway::offload {

/// Returns the elements of `device`, for a task that runs on a stream of the host backend.
template <class T>
[[nodiscard]] std::span<T> host_view(DeviceSpan<T> device) {
  return {device.address(), device.size()};
}

}  // namespace spillway::offload
