// ThreadTransport: one rank's end of a group of threads. A transfer is one copy, from the sender's
// buffer to the receiver's, which the receiver makes.
//
// Threads: a Meeting is shared by the ranks of a group; each end belongs to one thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/detail/transport.hpp"
#include "comm/threads/detail/link.hpp"
#include "runtime/base/mutex.hpp"

namespace spillway::comm::detail {

/// What the ranks of a group share. Outlives them.
class Meeting {
 public:
  Meeting(std::uint32_t ranks, std::optional<double> link_gigabytes_per_second);

  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }

 private:
  friend class ThreadTransport;

  /// What one rank sends to another. Message n of the pair lies in slot n % kMaxUnfinished.
  struct Mailbox {
    struct Message {
      Transport::Source data;
      Link::Clock::time_point over{};  ///< of a message that has been copied
    };
    std::array<Message, Transport::kMaxUnfinished> messages;
    std::uint64_t sent = 0;
    std::uint64_t copied = 0;
    bool copying = false;
  };
  struct End {
    Condition changed;
    Link outgoing, incoming;
  };
  struct Notice {
    Rank rank;
    ErrorCode code;
    std::string reason;
  };

  [[nodiscard]] Mailbox& mailbox(Rank from, Rank to) SPILLWAY_REQUIRES(mutex_) {
    return mailboxes_[std::size_t{from.value()} * ranks() + to.value()];
  }
  [[nodiscard]] Link::Clock::time_point over(Rank from, Rank to, std::size_t bytes)
      SPILLWAY_REQUIRES(mutex_);
  /// Returns whether another rank copies what this one has sent.
  [[nodiscard]] bool is_read(Rank from) SPILLWAY_REQUIRES(mutex_);

  const std::uint32_t ranks_;
  const std::optional<double> link_gigabytes_per_second_;

  Mutex mutex_;
  std::deque<End> ends_ SPILLWAY_GUARDED_BY(mutex_);
  std::vector<Mailbox> mailboxes_ SPILLWAY_GUARDED_BY(mutex_);
  /// Notice of the first rank that has abandoned the group.
  std::optional<Notice> notice_ SPILLWAY_GUARDED_BY(mutex_);
  /// When one has last said that it works for itself.
  Link::Clock::time_point at_work_ SPILLWAY_GUARDED_BY(mutex_){};
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(Meeting& meeting, Rank rank);

  void send(Rank to, Source data) override;
  void receive(Rank from, Target data) override;
  [[nodiscard]] std::optional<Rank> wait(std::uint64_t count,
                                         std::chrono::milliseconds limit) override;
  [[nodiscard]] std::optional<Rank> wait_for_any(std::span<const Rank> from,
                                                 std::chrono::milliseconds limit) override;
  void tell_at_work() override;
  void abandon(ErrorCode code, std::string_view reason) noexcept override;

 private:
  struct Transfer {
    std::uint64_t number;   ///< among this rank's
    std::uint64_t message;  ///< among the pair's
    Rank peer;
    Target target;  ///< empty: this rank is the sender
  };

  /// Returns whether the transfer is over; if not, lowers `wake` to its end where that is known.
  [[nodiscard]] bool advance(const Transfer& transfer, Clock::time_point& wake)
      SPILLWAY_REQUIRES(meeting_.mutex_);
  /// Copies, without the lock meanwhile.
  void copy(Meeting::Mailbox& mailbox, const Transfer& transfer) SPILLWAY_REQUIRES(meeting_.mutex_);
  /// Hears what the others have said: throws if one of them has abandoned the group.
  void hear() SPILLWAY_REQUIRES(meeting_.mutex_);

  Meeting& meeting_;
  std::uint64_t started_ = 0;
  std::vector<std::uint64_t> received_;  // by rank: receives that were started
  std::vector<Transfer> unfinished_;     // in the order of their numbers
  bool copied_ = false;                  // in this look at them
};

}  // namespace spillway::comm::detail
