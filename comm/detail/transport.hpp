// Transport: what a backend of Communicator implements. It moves bytes from rank to rank;
// everything else is composed of that, in comm/detail/collectives.hpp.
//
// Threads: made, used and destroyed by the one thread of its communicator that makes progress.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"

namespace spillway::comm::detail {

/// Transfers are numbered from 0 in the order in which they are started, sends and receives alike.
/// Those from one rank to another arrive in the order in which they were sent, each in a receive of
/// its size. At most `kMaxUnfinished` transfers with any one rank are unfinished.
class Transport {
 public:
  using Source = std::span<const std::byte>;
  using Target = std::span<std::byte>;
  using Clock = std::chrono::steady_clock;

  static constexpr std::size_t kMaxUnfinished = 6;

  Transport(Rank rank, std::uint32_t ranks) : rank_(rank), ranks_(ranks) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }

  /// Starts a transfer to or from another rank and returns. `data` is not empty.
  virtual void send(Rank to, Source data) = 0;
  virtual void receive(Rank from, Target data) = 0;
  /// Blocks until the first `count` transfers ever started are over, and returns nothing; or until
  /// `limit` has passed, and returns the other rank of the first that is not. Once another rank has
  /// abandoned the group it throws that rank's code, with its number and reason.
  [[nodiscard]] virtual std::optional<Rank> wait(std::uint64_t count,
                                                 std::chrono::milliseconds limit) = 0;
  /// Blocks until one of `from` has started a send that no receive of this rank stands for yet, and
  /// returns that rank, of several the first of the list; or nothing once `limit` has passed. No
  /// transfer is unfinished. Throws as `wait` does.
  [[nodiscard]] virtual std::optional<Rank> wait_for_any(std::span<const Rank> from,
                                                         std::chrono::milliseconds limit) = 0;
  /// Announces to the other ranks that this one is busy with its own work and will come. A rank
  /// that cannot be reached now does not hear it.
  virtual void tell_at_work() = 0;
  /// Returns when this rank has last heard that in a wait; before all times if it never has.
  [[nodiscard]] Clock::time_point heard_at_work() const { return heard_at_work_; }
  /// Informs the other ranks that this one is out, with the reason. Returns when none of this
  /// rank's buffers is touched any more. Only destruction may follow.
  virtual void abandon(ErrorCode code, std::string_view reason) noexcept = 0;

 protected:
  void hear_at_work(Clock::time_point when) { heard_at_work_ = std::max(heard_at_work_, when); }

 private:
  Clock::time_point heard_at_work_{};
  Rank rank_;
  std::uint32_t ranks_;
};

}  // namespace spillway::comm::detail
