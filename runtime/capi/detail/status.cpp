#include "runtime/capi/detail/status.hpp"

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "runtime/base/as_error.hpp"
#include "runtime/base/error.hpp"

namespace spillway::capi {
namespace {

struct LastError {
  std::string text{};
  const char* shown = "";  ///< `text`, or a constant where memory for one was lacking
  int native = 0;
};
thread_local LastError last_error;

spillway_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return SPILLWAY_INVALID_ARGUMENT;
    case ErrorCode::does_not_fit: return SPILLWAY_DOES_NOT_FIT;
    case ErrorCode::out_of_memory: return SPILLWAY_OUT_OF_MEMORY;
    case ErrorCode::io_error: return SPILLWAY_IO_ERROR;
    case ErrorCode::corrupt_data: return SPILLWAY_CORRUPT_DATA;
    case ErrorCode::busy: return SPILLWAY_BUSY;
    case ErrorCode::not_supported: return SPILLWAY_NOT_SUPPORTED;
    case ErrorCode::diverged: return SPILLWAY_DIVERGED;
    case ErrorCode::device_error: return SPILLWAY_DEVICE_ERROR;
    case ErrorCode::internal: break;
  }
  return SPILLWAY_INTERNAL;
}

spillway_status record(spillway_status status, const char* text, int native) noexcept {
  last_error.native = native;
  try {
    last_error.text = text;
    last_error.shown = last_error.text.c_str();
  } catch (...) {
    last_error.shown = "memory for a message is lacking: free some";
  }
  return status;
}

}  // namespace

spillway_status record_exception() noexcept {
  try {
    try {
      throw;
    } catch (const std::exception& exception) {
      const Error error = as_error(exception);
      return record(status_of(error.code()), error.what(), error.native());
    }
  } catch (const std::bad_alloc&) {  // of the message itself
    return record(SPILLWAY_OUT_OF_MEMORY,
                  "the system refused memory: free some, or lower the budget", 0);
  } catch (...) {
    return record(SPILLWAY_INTERNAL, "a library threw something unknown", 0);
  }
}

}  // namespace spillway::capi

const char* spillway_last_message() { return spillway::capi::last_error.shown; }
int32_t spillway_last_native_code() { return spillway::capi::last_error.native; }

const char* spillway_status_name(spillway_status status) {
  switch (status) {
    case SPILLWAY_OK: return "ok";
    case SPILLWAY_INVALID_ARGUMENT: return "invalid_argument";
    case SPILLWAY_DOES_NOT_FIT: return "does_not_fit";
    case SPILLWAY_OUT_OF_MEMORY: return "out_of_memory";
    case SPILLWAY_IO_ERROR: return "io_error";
    case SPILLWAY_CORRUPT_DATA: return "corrupt_data";
    case SPILLWAY_BUSY: return "busy";
    case SPILLWAY_NOT_SUPPORTED: return "not_supported";
    case SPILLWAY_DIVERGED: return "diverged";
    case SPILLWAY_DEVICE_ERROR: return "device_error";
    case SPILLWAY_INTERNAL: return "internal";
    default: return "unknown";
  }
}
