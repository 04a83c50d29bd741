// Inbox: this rank's end of the connection over which another one says why it ends. Owns the
// socket, and what has come of a notice that is not whole.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <optional>

#include "comm/tcp/socket.hpp"
#include "comm/tcp/wire.hpp"

namespace spillway::comm::detail {

class Inbox {
 public:
  Inbox() = default;
  Inbox(Rank peer, FileDescriptor socket) : peer_(peer), socket_(std::move(socket)) {}

  [[nodiscard]] const FileDescriptor& socket() const { return socket_; }
  [[nodiscard]] bool is_open() const { return socket_.is_open(); }
  /// Whether the other rank has said that it is done.
  [[nodiscard]] bool has_left() const { return left_; }
  /// Whether notices may still arrive.
  [[nodiscard]] bool is_watched() const { return is_open() && !left_; }

  /// Returns when the other rank has last said that it is at work.
  [[nodiscard]] std::chrono::steady_clock::time_point at_work() const { return at_work_; }

  /// Reads what has come, and returns why the other rank has failed once it has said so in full.
  /// Throws `Error{device_error}` if it has died, or says something else.
  [[nodiscard]] std::optional<Notice> hear();

 private:
  Rank peer_{};
  FileDescriptor socket_;
  Notice notice_{};  // that arrives
  std::size_t received_ = 0;
  bool left_ = false;
  std::chrono::steady_clock::time_point at_work_{};
};

}  // namespace spillway::comm::detail
