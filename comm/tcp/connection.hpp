// Connection: the transfers between this rank and another one, over a socket. A frame precedes the
// bytes of each. Owns the socket, and refers to the buffers of transfers that are unfinished.
//
// Threads: the one of the transport.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/detail/transport.hpp"
#include "comm/tcp/socket.hpp"
#include "comm/tcp/wire.hpp"

namespace spillway::comm::detail {

class Connection {
 public:
  Connection() = default;
  Connection(Rank peer, FileDescriptor socket) : peer_(peer), socket_(std::move(socket)) {}

  /// Adds a transfer; `number` is what `oldest` returns of it.
  void send(std::uint64_t number, Transport::Source data);
  void receive(std::uint64_t number, Transport::Target data);

  /// Moves what can be moved now. Throws `Error{device_error}` if the bytes are not the frames that
  /// are expected. A connection that has closed or failed moves nothing more.
  void advance();

  /// Returns the number of the first transfer that is unfinished, or nothing.
  [[nodiscard]] std::optional<std::uint64_t> oldest() const;
  /// Returns what poll(2) is to wait for; 0: nothing.
  [[nodiscard]] short events() const;
  /// Returns whether bytes have come that no transfer stands for: no receive is unfinished. Notices
  /// a connection that the other end has closed.
  [[nodiscard]] bool has_arrival();
  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] bool is_closed() const { return closed_; }
  /// Errno with which a closed connection has failed; 0: the other end has closed it.
  [[nodiscard]] int error() const { return error_; }

 private:
  template <class Span>
  struct Move {
    std::uint64_t number = 0;
    Frame frame{};
    Span data{};
  };
  /// Ring of the transfers in one direction, in order. The first one has begun.
  template <class Span>
  struct Direction {
    std::array<Move<Span>, Transport::kMaxUnfinished> moves;
    std::uint32_t started = 0;
    std::uint32_t finished = 0;
    std::size_t moved = 0;  ///< bytes of the first, its frame included

    [[nodiscard]] bool empty() const { return started == finished; }
    [[nodiscard]] Move<Span>& first() { return moves[finished % moves.size()]; }
    [[nodiscard]] const Move<Span>& first() const { return moves[finished % moves.size()]; }
    void add(std::uint64_t number, Span data);
    /// Returns false once nothing more can be moved now.
    bool count(const Moved& more);
  };

  void advance_out();
  void advance_in();
  void note_end(const Moved& last);

  Rank peer_{};
  FileDescriptor socket_;
  Direction<Transport::Source> out_;
  Direction<Transport::Target> in_;
  Frame frame_;  // that arrives
  bool closed_ = false;
  int error_ = 0;
};

}  // namespace spillway::comm::detail
