// Transfers: what a rank has started on its transport, of all its groups, and waits for it that
// have a limit.
//
// Threads: the one that makes progress; `stop` may be called by any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/detail/silence.hpp"
#include "comm/detail/transport.hpp"

namespace spillway::comm::detail {

class Transfers {
 public:
  using Source = Transport::Source;
  using Target = Transport::Target;

  Transfers(Transport& transport, std::chrono::milliseconds timeout)
      : transport_(transport), timeout_(timeout) {}

  [[nodiscard]] Rank rank() const { return transport_.rank(); }
  [[nodiscard]] std::uint32_t ranks() const { return transport_.ranks(); }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }

  // Transfers nothing for an empty span.
  void send(Rank to, Source data);
  void receive(Rank from, Target data);
  /// Number of transfers ever started.
  [[nodiscard]] std::uint64_t started() const { return started_; }
  /// Waits until the first `count` are over; after the timeout returns the other rank of the first
  /// that is not. Throws when stopped.
  [[nodiscard]] std::optional<Rank> wait(std::uint64_t count);
  /// Waits until a rank of `from` has started a send that this one does not receive yet, and
  /// returns it, of several the first; nothing after the timeout. Throws as `wait` does.
  [[nodiscard]] std::optional<Rank> wait_for_any(std::span<const Rank> from);
  void stop() { stopped_.store(true, std::memory_order_relaxed); }

 private:
  void check_going_on() const;
  /// Whether the timeout has passed since `begin` and since a rank last said that it is at work.
  [[nodiscard]] bool is_over(std::chrono::steady_clock::time_point begin) const;
  Transport& transport_;
  /// Logs once in a while which rank this one waits for; null: any of several.
  void tell_waiting(std::chrono::steady_clock::time_point begin, const Rank* whom);
  /// Raises `silence_` to twice this wait, within kLongestSilence.
  void note_wait(std::chrono::steady_clock::time_point begin);

  const std::chrono::milliseconds timeout_;
  std::uint64_t started_ = 0;
  /// So long a wait lasts before it is told.
  std::chrono::steady_clock::duration silence_ = kSilence;
  std::chrono::steady_clock::time_point next_word_{};
  std::atomic<bool> stopped_{false};
};

}  // namespace spillway::comm::detail
