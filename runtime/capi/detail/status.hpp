// Turns exceptions into statuses: every function of the C interface runs inside `guarded`. The last
// error belongs to the thread. Any thread may call anything here.
#pragma once

#include <utility>

#include "runtime/capi/spillway.h"

namespace spillway::capi {

/// Remembers the exception that is being handled as this thread's last error, and returns its
/// status.
[[nodiscard]] spillway_status record_exception() noexcept;

/// Runs `body`; returns SPILLWAY_OK, or the status of what it throws.
template <class Body>
[[nodiscard]] spillway_status guarded(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return SPILLWAY_OK;
  } catch (...) {
    return record_exception();
  }
}

}  // namespace spillway::capi
