#include "comm/threads/detail/thread_transport.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>

namespace spillway::comm::detail {

Meeting::Meeting(std::uint32_t ranks, std::optional<double> link_gigabytes_per_second)
    : ranks_(ranks),
      link_gigabytes_per_second_(link_gigabytes_per_second),
      ends_(ranks),
      mailboxes_(std::size_t{ranks} * ranks) {}

Link::Clock::time_point Meeting::over(Rank from, Rank to, std::size_t bytes) {
  if (!link_gigabytes_per_second_.has_value()) return {};
  const double rate = *link_gigabytes_per_second_;
  const Link::Clock::time_point now = Link::Clock::now();
  return std::max(ends_[from.value()].outgoing.reserve(now, bytes, rate),
                  ends_[to.value()].incoming.reserve(now, bytes, rate));
}

bool Meeting::is_read(Rank from) {
  for (std::uint32_t to = 0; to < ranks(); ++to) {
    if (mailbox(from, Rank{to}).copying) return true;
  }
  return false;
}

ThreadTransport::ThreadTransport(Meeting& meeting, Rank rank)
    : Transport(rank, meeting.ranks()), meeting_(meeting), received_(meeting.ranks()) {
  unfinished_.reserve(2 * kMaxUnfinished * meeting.ranks());
  for (std::uint32_t from = 0; from < ranks(); ++from) {
    const Lock lock(meeting_.mutex_);
    received_[from] = meeting_.mailbox(Rank{from}, rank).copied;
  }
  // The default slack of 50 us would end every throttled transfer that much late.
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

void ThreadTransport::send(Rank to, Source data) {
  const Lock lock(meeting_.mutex_);
  Meeting::Mailbox& mailbox = meeting_.mailbox(rank(), to);
  SPILLWAY_ASSERT(mailbox.sent - mailbox.copied < kMaxUnfinished);
  unfinished_.push_back({.number = started_++, .message = mailbox.sent, .peer = to, .target = {}});
  mailbox.messages[mailbox.sent++ % kMaxUnfinished] = {.data = data};
  meeting_.ends_[to.value()].changed.notify_one();
}

void ThreadTransport::receive(Rank from, Target data) {
  unfinished_.push_back(
      {.number = started_++, .message = received_[from.value()]++, .peer = from, .target = data});
}

std::optional<Rank> ThreadTransport::wait(std::uint64_t count, std::chrono::milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  Lock lock(meeting_.mutex_);
  while (true) {
    hear();
    Clock::time_point wake = end;
    copied_ = false;
    std::erase_if(unfinished_, [&](const Transfer& transfer) SPILLWAY_REQUIRES(meeting_.mutex_) {
      return advance(transfer, wake);
    });
    if (unfinished_.empty() || unfinished_.front().number >= count) return std::nullopt;
    if (Clock::now() >= end) return unfinished_.front().peer;
    // A notification may have come while a copy had given up the lock.
    if (!copied_) meeting_.ends_[rank().value()].changed.wait_until(lock, wake);
  }
}

std::optional<Rank> ThreadTransport::wait_for_any(std::span<const Rank> from,
                                                  std::chrono::milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  Lock lock(meeting_.mutex_);
  while (true) {
    hear();
    for (const Rank other : from) {
      if (meeting_.mailbox(other, rank()).sent > received_[other.value()]) return other;
    }
    if (Clock::now() >= end) return std::nullopt;
    meeting_.ends_[rank().value()].changed.wait_until(lock, end);
  }
}

bool ThreadTransport::advance(const Transfer& transfer, Clock::time_point& wake) {
  const bool sends = transfer.target.empty();
  Meeting::Mailbox& mailbox =
      sends ? meeting_.mailbox(rank(), transfer.peer) : meeting_.mailbox(transfer.peer, rank());
  if (!sends && mailbox.copied == transfer.message && mailbox.sent > transfer.message) {
    copy(mailbox, transfer);
  }
  if (mailbox.copied <= transfer.message) return false;
  const Clock::time_point over = mailbox.messages[transfer.message % kMaxUnfinished].over;
  if (over <= Clock::now()) return true;
  wake = std::min(wake, over);
  return false;
}

void ThreadTransport::copy(Meeting::Mailbox& mailbox, const Transfer& transfer) {
  hear();
  Meeting::Mailbox::Message& message = mailbox.messages[transfer.message % kMaxUnfinished];
  const Source data = message.data;
  SPILLWAY_ASSERT(data.size() == transfer.target.size());  // headers have been compared
  message.over = meeting_.over(transfer.peer, rank(), data.size());
  mailbox.copying = true;
  meeting_.mutex_.unlock();
  std::ranges::copy(data, transfer.target.begin());
  meeting_.mutex_.lock();
  mailbox.copying = false;
  ++mailbox.copied;
  copied_ = true;
  meeting_.ends_[transfer.peer.value()].changed.notify_one();
}

void ThreadTransport::tell_at_work() {
  const Lock lock(meeting_.mutex_);
  meeting_.at_work_ = Clock::now();
}

void ThreadTransport::hear() {
  hear_at_work(meeting_.at_work_);
  if (!meeting_.notice_.has_value()) return;
  const Meeting::Notice& notice = *meeting_.notice_;
  throw Error(notice.code, fmt::format("rank {} has abandoned the group: {}", notice.rank.value(),
                                       notice.reason));
}

void ThreadTransport::abandon(ErrorCode code, std::string_view reason) noexcept {
  Lock lock(meeting_.mutex_);
  if (!meeting_.notice_.has_value()) {
    meeting_.notice_.emplace(Meeting::Notice{.rank = rank(), .code = code, .reason = {}});
    try {
      meeting_.notice_->reason = reason;
    } catch (...) {  // without memory the others do without the reason
    }
  }
  for (Meeting::End& end : meeting_.ends_) end.changed.notify_one();
  while (meeting_.is_read(rank())) meeting_.ends_[rank().value()].changed.wait(lock);
}

}  // namespace spillway::comm::detail
