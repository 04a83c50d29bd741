// The one error type. Thrown by every module; only runtime/capi turns it into a status.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "runtime/base/source_location.hpp"

namespace spillway {

enum class ErrorCode {
  invalid_argument,  ///< wrong usage or configuration (exit code 2)
  does_not_fit,      ///< a budget is too small for the request (exit code 3)
  out_of_memory,     ///< an allocation was refused by the system or by a limit
  io_error,          ///< a file operation failed; native() is errno
  corrupt_data,      ///< bytes read are not the bytes written, or a file breaks its format
  busy,              ///< a resource is held by another process
  not_supported,     ///< the request is understood and this build or machine cannot do it
  diverged,          ///< training produced non-finite values that it cannot recover from
  device_error,      ///< a device runtime call failed; native() is its code
  internal,          ///< a library call failed in a way that has no better name
};

/// Returns a short stable name, for machine-readable output: "io_error".
std::string_view name_of(ErrorCode code);

/// A failure, with the native code (errno, cudaError_t, ...; 0 if none) and the place where it was
/// noticed. The message names the cause, the value and the remedy.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int native = 0,
        SourceLocation where = SourceLocation::current());

  [[nodiscard]] ErrorCode code() const { return code_; }
  [[nodiscard]] int native() const { return native_; }
  [[nodiscard]] const SourceLocation& where() const { return where_; }

 private:
  ErrorCode code_;
  int native_;
  SourceLocation where_;
};

/// Throws `Error{code, message}` unless `condition` holds.
inline void check(bool condition, ErrorCode code, std::string_view message,
                  SourceLocation where = SourceLocation::current()) {
  if (!condition) [[unlikely]] {
    throw Error(code, std::string(message), 0, where);
  }
}

/// Throws `Error{io_error}` with `error_number` spelled out after `what` ("open /x/y").
[[noreturn]] void throw_errno(int error_number, std::string_view what,
                              SourceLocation where = SourceLocation::current());

/// Reports a broken invariant on stderr and aborts. Not for bad input.
[[noreturn]] void fail_assertion(const char* expression, SourceLocation where);

}  // namespace spillway

/// Always on. A macro because the message is the expression itself.
#define SPILLWAY_ASSERT(expression)    \
  ((expression) ? static_cast<void>(0) \
                : ::spillway::fail_assertion(#expression, ::spillway::SourceLocation::current()))
