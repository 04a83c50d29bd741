// DeviceLink: what a backend of DeviceCommunicator implements. It puts operations on streams and
// says what has become of them; who is late, and for how long, is not its business.
//
// Threads: the control thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/detail/call.hpp"

namespace spillway::comm::detail {

class DeviceLink {
 public:
  /// Progress of a stream: before an operation, in it, or past it.
  enum class Mark : std::uint8_t { before, within, behind };

  struct Health {
    enum class State : std::uint8_t {
      idle,
      busy,             ///< the last call is not on its stream yet
      failed,           ///< by something of this rank
      failed_elsewhere  ///< by something of another rank, which is not known
    };
    State state = State::idle;
    std::string text{};  ///< the library's words for a failure
  };

  DeviceLink() = default;
  virtual ~DeviceLink() = default;
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  /// Gives `call`, whose buffers are memory of the device, to the library, with a mark in front of
  /// it. The slots are those of operations that are not over. Throws `Error{device_error}`.
  virtual void enqueue(const Call& call, void* stream, std::size_t slot) = 0;
  /// Puts a mark behind the call, once the library is no longer busy with it.
  virtual void close(void* stream, std::size_t slot) = 0;
  [[nodiscard]] virtual Mark mark(std::size_t slot) = 0;
  [[nodiscard]] virtual Health health() = 0;
};

}  // namespace spillway::comm::detail
