#include "comm/tcp/reception.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "comm/tcp/proof.hpp"
#include "runtime/base/log.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// A rank says hello at once; who has not proved who it is after so long is none.
constexpr std::chrono::seconds kPatience{10};
/// Beyond so many at a time, who has been there for longest is sent away.
constexpr std::size_t kMostVisits = 512;
/// After so many that come at once those who are there are heard.
constexpr int kMostAtOnce = 64;
/// So many refusals are told; a stranger can make as many as it likes.
constexpr std::uint32_t kMostTold = 8;

}  // namespace

Reception::Reception(const Hello& own, FileDescriptor listener, JobKey& key)
    : own_(own), key_(key), listener_(std::move(listener)) {}

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
    remove_late();
  }
  if (admitted_.empty()) return std::nullopt;
  std::optional<Guest> guest(std::move(admitted_.back()));
  admitted_.pop_back();
  return guest;
}

void Reception::refuse(const FileDescriptor& socket, const std::string& reason) {
  last_refusal_ = reason;
  send_small(socket, bytes_of(refusal_notice(Rank{own_.rank}, reason)));
  if (refusals_++ < kMostTold) log_warning("a caller is turned away: {}", reason);
}

void Reception::turn_away(const Notice& notice, Deadline end) {
  answer_ = notice;
  for (const Guest& guest : admitted_) send_small(guest.socket, bytes_of(notice));
  const std::vector<Guest> told = std::exchange(admitted_, {});
  static_cast<void>(admit({}, end));
}

void Reception::accept() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    std::optional<FileDescriptor> socket = accept_at(listener_);
    if (!socket.has_value()) return;
    if (visits_.size() == kMostVisits) visits_.erase(visits_.begin());
    visits_.push_back({.socket = std::move(*socket), .end = Clock::now() + kPatience});
  }
}

void Reception::listen_to(Visit& visit) {
  const bool greeted = visit.received >= sizeof visit.hello;
  const std::span<std::byte> rest =
      greeted ? writable_bytes_of(visit.proof).subspan(visit.received - sizeof visit.hello)
              : writable_bytes_of(visit.hello).subspan(visit.received);
  const Moved more = receive_some(visit.socket, rest);
  if (more.state == Transfer::closed) return visit.socket.close();
  if (more.state == Transfer::none_now) return;
  visit.received += more.bytes;
  greeted ? hear_proof(visit) : hear_hello(visit);
}

void Reception::hear_hello(Visit& visit) {
  if (visit.received < kHelloHead || !goes_on(visit, judge_head(visit.hello, own_))) return;
  if (visit.received < sizeof visit.hello || !goes_on(visit, judge(visit.hello, own_))) return;
  if (answers(visit)) return;
  visit.challenge.nonce = random_nonce();
  if (!send_small(visit.socket, bytes_of(visit.challenge))) visit.socket.close();
}

void Reception::hear_proof(Visit& visit) {
  if (visit.received < sizeof visit.hello + sizeof visit.proof || answers(visit)) return;
  FileDescriptor socket = std::move(visit.socket);
  const Key& key = key_.get();
  if (!is_proved(key, Side::caller, visit.hello, visit.challenge, visit.proof)) {
    return refuse(socket, fmt::format("who says that it is rank {} does not know the secret of "
                                      "this job, which rank {} has from {}",
                                      visit.hello.rank, own_.rank, name_of(own_.key)));
  }
  if (send_small(socket, bytes_of(prove(key, Side::called, visit.hello, visit.challenge)))) {
    admitted_.push_back({.hello = visit.hello, .socket = std::move(socket)});
  }
}

bool Reception::answers(Visit& visit) {
  if (!answer_.has_value()) return false;
  send_small(visit.socket, bytes_of(*answer_));
  ++turned_away_;
  visit.socket.close();
  return true;
}

bool Reception::goes_on(Visit& visit, const Verdict& verdict) {
  if (verdict.kind == Verdict::Kind::member) return true;
  if (verdict.kind == Verdict::Kind::refused) refuse(visit.socket, verdict.reason);
  visit.socket.close();
  return false;
}

void Reception::remove_late() {
  const Deadline now = Clock::now();
  std::erase_if(visits_, [&](const Visit& visit) { return visit.end <= now; });
}

}  // namespace spillway::comm::detail
