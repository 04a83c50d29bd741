// Turns exceptions of the standard library into `Error`.
#pragma once

#include <exception>

#include "runtime/base/error.hpp"

namespace spillway {

/// Returns an `Error` as it is, and for another exception one whose message and code say as much: a
/// file operation's names the operation, the path and errno.
[[nodiscard]] Error as_error(const std::exception& exception);

}  // namespace spillway
