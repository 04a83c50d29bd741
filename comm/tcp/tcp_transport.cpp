#include "comm/tcp/tcp_transport.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// Bounds how long a rank that has failed waits until the others have read why.
constexpr std::chrono::milliseconds kFarewell{500};
/// Bounds how much later than its data the notice of a rank arrives that leaves or fails.
constexpr std::chrono::milliseconds kLastWord{1000};

}  // namespace

TcpTransport::TcpTransport(Rank rank, std::vector<Peer> peers)
    : Transport(rank, static_cast<std::uint32_t>(peers.size())),
      links_(peers.size()),
      polls_(2 * peers.size()) {
  for (std::uint32_t other = 0; other < ranks(); ++other) {
    links_[other].data = Connection(Rank{other}, std::move(peers[other].data));
    links_[other].notices = std::move(peers[other].notices);
  }
}

TcpTransport::~TcpTransport() {
  if (!abandoned_) tell({.kind = Notice::Kind::left, .rank = rank().value()});
}

void TcpTransport::send(Rank to, Source data) { links_[to.value()].data.send(started_++, data); }

void TcpTransport::receive(Rank from, Target data) {
  links_[from.value()].data.receive(started_++, data);
}

std::optional<Rank> TcpTransport::wait(std::uint64_t count, std::chrono::milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  for (Link& link : links_) link.data.advance();
  while (true) {
    const std::optional<Unfinished> first = oldest();
    if (!first.has_value() || first->number >= count) return std::nullopt;
    advance(end);
    if (Clock::now() >= end) {
      const std::optional<Unfinished> late = oldest();
      if (!late.has_value() || late->number >= count) return std::nullopt;
      return late->peer;
    }
  }
}

std::optional<Rank> TcpTransport::wait_for_any(std::span<const Rank> from,
                                               std::chrono::milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  while (true) {
    for (const Rank other : from) {
      Link& link = links_[other.value()];
      if (link.data.has_arrival()) return other;
      check_present(link, other);
    }
    if (Clock::now() >= end) return std::nullopt;
    advance(end, from);
  }
}

std::optional<TcpTransport::Unfinished> TcpTransport::oldest() const {
  std::optional<Unfinished> first;
  for (std::uint32_t other = 0; other < ranks(); ++other) {
    const std::optional<std::uint64_t> number = links_[other].data.oldest();
    if (number.has_value() && (!first.has_value() || *number < first->number)) {
      first = {.number = *number, .peer = Rank{other}};
    }
  }
  return first;
}

void TcpTransport::advance(Clock::time_point end, std::span<const Rank> awaited) {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const Link& link = links_[i];
    const bool may_say_why = link.last_word > Clock::now() && !link.notices.has_left();
    if (may_say_why) end = std::min(end, *link.last_word);
    const short events = link.data.events();
    polls_[2 * i] = {.fd = events == 0 ? -1 : link.data.socket(), .events = events, .revents = 0};
    polls_[2 * i + 1] = {.fd = link.notices.is_watched() ? link.notices.socket().get() : -1,
                         .events = POLLIN,
                         .revents = 0};
  }
  for (const Rank other : awaited) {
    const Connection& data = links_[other.value()].data;
    if (data.is_closed()) continue;
    polls_[2 * other.value()].fd = data.socket();
    polls_[2 * other.value()].events |= POLLIN;
  }
  if (::poll(polls_.data(), polls_.size(), poll_time(end)) < 0) {
    if (errno == EINTR) return;
    throw_errno(errno, "poll of the connections between ranks");
  }
  for (std::uint32_t other = 0; other < ranks(); ++other) {
    Link& link = links_[other];
    if (polls_[2 * other + 1].revents != 0) hear(link);
    if (polls_[2 * other].revents != 0) link.data.advance();
    if (link.data.oldest().has_value()) check_present(link, Rank{other});
  }
}

// The connection of data may close a little earlier than that of notices, which says why.
void TcpTransport::check_present(Link& link, Rank other) const {
  if (!link.data.is_closed()) return;
  if (link.notices.has_left()) {
    throw Error(ErrorCode::device_error,
                fmt::format("rank {} has left the group while rank {} waits for it", other.value(),
                            rank().value()));
  }
  if (!link.last_word.has_value()) link.last_word = Clock::now() + kLastWord;
  if (Clock::now() < *link.last_word) return;
  const int error = link.data.error();
  throw Error(ErrorCode::device_error,
              fmt::format("the connection of rank {} to rank {} is lost, and rank {} has not said "
                          "that it ends: {}",
                          rank().value(), other.value(), other.value(),
                          error == 0 ? "it was closed" : std::strerror(error)),
              error);
}

void TcpTransport::hear(Link& link) {
  if (std::optional<Notice> failed = link.notices.hear()) {
    heard_ = failed;
    throw failed->error();
  }
  hear_at_work(link.notices.at_work());
}

// Many may come before a rank reads them, and none may be cut off: a rank that has not been told
// the last time is left out.
void TcpTransport::tell_at_work() {
  const Notice notice{.kind = Notice::Kind::at_work, .rank = rank().value()};
  for (const Link& link : links_) {
    if (!link.notices.is_watched()) continue;
    if (unsent(link.notices.socket()) == 0) {
      send_small(link.notices.socket(), bytes_of(notice));
    }
  }
}

void TcpTransport::abandon(ErrorCode code, std::string_view reason) noexcept {
  abandoned_ = true;
  tell(heard_.value_or(failure_notice(rank(), code, reason)));
  // What a rank has not read is lost if this one closes a connection on which something is unread.
  const Clock::time_point end = Clock::now() + kFarewell;
  std::array<std::byte, sizeof(Notice)> unread;
  for (Link& link : links_) {
    if (!link.notices.is_open()) continue;
    ::shutdown(link.notices.socket().get(), SHUT_WR);
    try {
      while (receive_all(link.notices.socket(), unread, end)) {
      }
    } catch (const Error&) {  // it cannot be told more than it has been
    }
  }
}

void TcpTransport::tell(const Notice& notice) noexcept {
  for (const Link& link : links_) {
    if (link.notices.is_open()) send_small(link.notices.socket(), bytes_of(notice));
  }
}

std::unique_ptr<Transport> make_tcp_transport(const LaunchEnvironment& launch,
                                              std::chrono::milliseconds limit) {
  return std::make_unique<TcpTransport>(launch.rank, meet(launch, limit));
}

}  // namespace spillway::comm::detail
