// Sockets of the backend `tcp`: non-blocking streams over IPv4 and IPv6, and waits that end at a
// time. They are closed in a program that another one replaces. Any thread; a socket is one's own.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/file.hpp"

namespace spillway::comm::detail {

using Deadline = std::chrono::steady_clock::time_point;

/// Takes connections at `port` of the first address of `host` that is this machine's; port 0 is one
/// that is free. Returns nothing if none of them is. Throws `Error{busy}` if another program has
/// the port.
[[nodiscard]] std::optional<FileDescriptor> listen_at(const std::string& host, std::uint16_t port);
/// Listens at all addresses of this machine. Throws `Error{not_supported}` if it has none.
[[nodiscard]] FileDescriptor listen_everywhere(std::uint16_t port);
[[nodiscard]] std::uint16_t port_of(const FileDescriptor& listener);

/// Returns the next connection, or nothing if there is none now.
[[nodiscard]] std::optional<FileDescriptor> accept_at(const FileDescriptor& listener);
/// Connects to the first address of `host` that takes it, and tries again until `end`: who listens
/// there may be late. `between` attempts the caller may learn that it is in vain, and throw. Throws
/// `Error{device_error}` that says why the last attempt has failed, and `Error{invalid_argument}`
/// at once for a host that has no address.
[[nodiscard]] FileDescriptor connect_to(
    const std::string& host, std::uint16_t port, Deadline end,
    const std::function<void()>& between = [] {});
/// Returns the numeric address of the other end, or nothing if that is on this machine.
[[nodiscard]] std::string other_end(const FileDescriptor& socket);
/// Returns likewise this end's, or nothing if it is loopback's.
[[nodiscard]] std::string this_end(const FileDescriptor& socket);
/// Whether all addresses of `host` are loopback's; false if it has none.
[[nodiscard]] bool is_loopback(const std::string& host);

enum class Transfer : std::uint8_t { some, none_now, closed };
struct Moved {
  Transfer state;
  std::size_t bytes = 0;  ///< with `some`
  int error = 0;          ///< errno with `closed`; 0: the other end has closed it in an orderly way
};
/// Returns the outcome of a system call that has moved `bytes`.
[[nodiscard]] Moved moved(ssize_t bytes);
[[nodiscard]] Moved receive_some(const FileDescriptor& socket, std::span<std::byte> target);
/// Receives, and leaves the bytes where they are.
[[nodiscard]] Moved peek(const FileDescriptor& socket, std::span<std::byte> target);
/// Sends what fits into the socket's buffer, and returns whether that was all: for a message that
/// is the first of its socket and small.
bool send_small(const FileDescriptor& socket, std::span<const std::byte> source) noexcept;

/// Number of bytes sent that the other end's system has not taken yet.
[[nodiscard]] std::size_t unsent(const FileDescriptor& socket);

/// Outcome of a transfer of many system calls.
struct Ending {
  enum class Kind : std::uint8_t { done, late, closed } kind = Kind::done;
  int error = 0;  ///< errno with `closed`; 0: the other end has closed it in an orderly way

  explicit operator bool() const { return kind == Kind::done; }
};
/// These end with `late` at `end`. Every tenth of a second of waiting they call `meanwhile`, which
/// throws if it is in vain.
[[nodiscard]] Ending send_all(
    const FileDescriptor& socket, std::span<const std::byte> source, Deadline end,
    const std::function<void()>& meanwhile = [] {});
[[nodiscard]] Ending receive_all(
    const FileDescriptor& socket, std::span<std::byte> target, Deadline end,
    const std::function<void()>& meanwhile = [] {});

/// Returns the milliseconds until `end`, rounded up and not negative, as poll(2) takes them.
[[nodiscard]] int poll_time(Deadline end);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span{&value, 1});
}
template <class T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span{&value, 1});
}

}  // namespace spillway::comm::detail
