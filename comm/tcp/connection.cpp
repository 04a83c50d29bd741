#include "comm/tcp/connection.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

/// Returns the part of a frame and its data that has not been moved.
std::array<iovec, 2> rest_of(std::byte* frame, std::byte* data, std::size_t bytes,
                             std::size_t moved) {
  const std::size_t of_frame = std::min(moved, sizeof(Frame));
  const std::size_t of_data = moved - of_frame;
  return {iovec{frame + of_frame, sizeof(Frame) - of_frame},
          iovec{data + of_data, bytes - of_data}};
}

}  // namespace

template <class Span>
void Connection::Direction<Span>::add(std::uint64_t number, Span data) {
  SPILLWAY_ASSERT(started - finished < moves.size());
  moves[started % moves.size()] = {
      .number = number, .frame = {.number = started, .bytes = data.size()}, .data = data};
  ++started;
}

template <class Span>
bool Connection::Direction<Span>::count(const Moved& more) {
  if (more.state != Transfer::some) return false;
  moved += more.bytes;
  if (moved == sizeof(Frame) + first().data.size()) {
    moved = 0;
    ++finished;
  }
  return true;
}

void Connection::send(std::uint64_t number, Transport::Source data) { out_.add(number, data); }

void Connection::receive(std::uint64_t number, Transport::Target data) { in_.add(number, data); }

void Connection::advance() {
  advance_out();
  advance_in();
}

void Connection::advance_out() {
  while (!out_.empty() && !closed_) {
    auto& first = out_.first();
    // sendmsg only reads, whatever its types say.
    auto parts = rest_of(reinterpret_cast<std::byte*>(&first.frame),
                         const_cast<std::byte*>(first.data.data()), first.data.size(), out_.moved);
    const msghdr message{.msg_name = nullptr,
                         .msg_namelen = 0,
                         .msg_iov = parts.data(),
                         .msg_iovlen = parts.size(),
                         .msg_control = nullptr,
                         .msg_controllen = 0,
                         .msg_flags = 0};
    const Moved more = moved(::sendmsg(socket_.get(), &message, MSG_NOSIGNAL));
    note_end(more);
    if (!out_.count(more)) return;
  }
}

void Connection::advance_in() {
  while (!in_.empty() && !closed_) {
    const auto& first = in_.first();
    const auto parts = rest_of(reinterpret_cast<std::byte*>(&frame_), first.data.data(),
                               first.data.size(), in_.moved);
    const Moved more = moved(::readv(socket_.get(), parts.data(), parts.size()));
    note_end(more);
    if (in_.moved < sizeof frame_ && in_.moved + more.bytes >= sizeof frame_) {
      check_frame(frame_, first.frame, peer_);
    }
    if (!in_.count(more)) return;
  }
}

void Connection::note_end(const Moved& last) {
  if (last.state != Transfer::closed) return;
  closed_ = true;
  error_ = last.error;
}

std::optional<std::uint64_t> Connection::oldest() const {
  if (out_.empty() && in_.empty()) return std::nullopt;
  if (out_.empty()) return in_.first().number;
  if (in_.empty()) return out_.first().number;
  return std::min(out_.first().number, in_.first().number);
}

bool Connection::has_arrival() {
  if (closed_) return false;
  std::byte first{};
  const Moved peeked = peek(socket_, std::span{&first, 1});
  note_end(peeked);
  return peeked.state == Transfer::some;
}

short Connection::events() const {
  if (closed_) return 0;
  return static_cast<short>((out_.empty() ? 0 : POLLOUT) | (in_.empty() ? 0 : POLLIN));
}

}  // namespace spillway::comm::detail
