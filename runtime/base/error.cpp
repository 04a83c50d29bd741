#include "runtime/base/error.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace spillway {

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::does_not_fit: return "does_not_fit";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::io_error: return "io_error";
    case ErrorCode::corrupt_data: return "corrupt_data";
    case ErrorCode::busy: return "busy";
    case ErrorCode::not_supported: return "not_supported";
    case ErrorCode::diverged: return "diverged";
    case ErrorCode::device_error: return "device_error";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

Error::Error(ErrorCode code, const std::string& message, int native, SourceLocation where)
    : std::runtime_error(message), code_(code), native_(native), where_(where) {}

void throw_errno(int error_number, std::string_view what, SourceLocation where) {
  throw Error(ErrorCode::io_error,
              fmt::format("{}: {} (errno {})", what, std::strerror(error_number), error_number),
              error_number, where);
}

void fail_assertion(const char* expression, SourceLocation where) {
  std::fprintf(stderr, "spillway: broken invariant `%s` at %s:%u in %s\n", expression,
               where.file_name(), where.line(), where.function_name());
  std::abort();
}

}  // namespace spillway
