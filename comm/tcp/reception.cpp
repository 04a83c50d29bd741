#include "comm/tcp/reception.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// A rank says hello at once; who says nothing for so long is none.
constexpr std::chrono::seconds kPatience{5};
/// Beyond so many at a time, who has been silent for longest is sent away.
constexpr std::size_t kMostVisits = 512;

}  // namespace

Reception::Reception(const Hello& own, const std::string& host, std::uint16_t port)
    : own_(own), listener_(listen_at(host, port)) {}

std::optional<Guest> Reception::admit(std::span<const int> watched, Deadline end) {
  std::vector<pollfd> polls;
  while (admitted_.empty() && Clock::now() < end) {
    polls.clear();
    polls.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
    for (const int one : watched) polls.push_back({.fd = one, .events = POLLIN, .revents = 0});
    Deadline wake = end;
    for (const Visit& visit : visits_) {
      polls.push_back({.fd = visit.socket.get(), .events = POLLIN, .revents = 0});
      wake = std::min(wake, visit.end);
    }
    if (::poll(polls.data(), polls.size(), poll_time(wake)) < 0 && errno != EINTR) {
      throw_errno(errno, "poll of the connections of ranks that meet");
    }
    for (std::size_t i = 0; i < watched.size(); ++i) {
      if (polls[1 + i].revents != 0) return std::nullopt;
    }
    for (Visit& visit : visits_) listen_to(visit);
    std::erase_if(visits_, [](const Visit& visit) { return !visit.socket.is_open(); });
    if (polls[0].revents != 0) accept();
    remove_silent();
  }
  if (admitted_.empty()) return std::nullopt;
  std::optional<Guest> guest(std::move(admitted_.back()));
  admitted_.pop_back();
  return guest;
}

void Reception::turn_away(const Notice& notice, Deadline end) {
  answer_ = notice;
  for (const Guest& guest : admitted_) send_small(guest.socket, bytes_of(notice));
  const std::vector<Guest> told = std::exchange(admitted_, {});
  static_cast<void>(admit({}, end));
}

void Reception::accept() {
  while (std::optional<FileDescriptor> socket = accept_at(listener_)) {
    if (visits_.size() == kMostVisits) visits_.erase(visits_.begin());
    visits_.push_back({.socket = std::move(*socket), .end = Clock::now() + kPatience});
  }
}

void Reception::listen_to(Visit& visit) {
  const Moved moved =
      receive_some(visit.socket, writable_bytes_of(visit.hello).subspan(visit.received));
  if (moved.state == Transfer::closed) return visit.socket.close();
  visit.received += moved.bytes;
  if (visit.received < sizeof visit.hello) return;
  FileDescriptor socket = std::move(visit.socket);
  if (answer_.has_value()) {
    send_small(socket, bytes_of(*answer_));
    return;
  }
  try {
    const Visitor visitor = check_hello(visit.hello, own_);
    if (visitor == Visitor::member) {
      admitted_.push_back({.hello = visit.hello, .socket = std::move(socket)});
    } else if (visitor == Visitor::other_job) {
      send_small(socket,
                 bytes_of(failure_notice(
                     Rank{own_.rank}, ErrorCode::invalid_argument,
                     fmt::format("it is of job \"{}\", and who called it of job \"{}\"; give each "
                                 "job a port of its own by SPILLWAY_MASTER_PORT",
                                 own_.job_name(), visit.hello.job_name()))));
    }
  } catch (const Error& error) {
    send_small(socket, bytes_of(failure_notice(Rank{own_.rank}, error.code(), error.what())));
    throw;
  }
}

void Reception::remove_silent() {
  const Deadline now = Clock::now();
  std::erase_if(visits_, [&](const Visit& visit) { return visit.end <= now; });
}

}  // namespace spillway::comm::detail
