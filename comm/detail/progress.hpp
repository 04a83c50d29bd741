// Progress: the thread that runs a communicator's operations, and the queue before it.
//
// Threads: the control thread calls; the thread of its own makes, uses and destroys the transport.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/detail/call.hpp"
#include "comm/detail/members.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/base/ticket.hpp"

namespace spillway::comm::detail {

class Collectives;
class Transfers;
class Transport;

/// Calls are numbered from 0 in the order of submission, wrapping at 2^32; the number is the
/// ticket's slot. They run in order, so that "number n is over" is "at least n + 1 calls are over",
/// and from the first that fails on all of them fail with its error.
class Progress final : public TicketSource {
 public:
  /// Waits until the transport is made; throws what `make` throws.
  Progress(const Communicator::MakeTransport& make, const CommunicatorOptions& options);
  /// Runs what is queued.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  [[nodiscard]] const CommunicatorOptions& options() const { return options_; }
  /// Returns the group of all ranks.
  [[nodiscard]] Collectives& all() { return *groups_.front(); }
  /// Returns one more group, which lives as long as this. Throws what Members does, or the failure
  /// that all calls have.
  [[nodiscard]] Collectives& add_subgroup(const Members& of, std::span<const Rank> some);

  /// Waits for a free entry if all are taken. Allocates nothing.
  Ticket submit(Collectives& group, const Call& call);
  void wake_with(WakeSignal* wake);
  /// Lets the other ranks hear that this one is at work, until the matching `end_work`.
  void begin_work();
  void end_work();
  /// Waits until the others have been told.
  void abandon(std::string_view reason) noexcept;

  [[nodiscard]] bool ready(std::uint32_t number) override;
  void finish(std::uint32_t number) override;

 private:
  struct Entry {
    Collectives* group = nullptr;
    Call call{};
  };

  void run(const Communicator::MakeTransport& make);
  void run_calls(Transport& transport);
  /// Waits for a call and returns true, or false when there will be none.
  [[nodiscard]] bool next(Transport& transport, Entry& entry);
  /// Informs the other ranks, and ends all present and future calls with the current exception.
  void give_up(Transport& transport, ErrorCode code, std::string_view reason);
  void end(std::exception_ptr failure) SPILLWAY_EXCLUDES(mutex_);
  [[nodiscard]] bool is_finished(std::uint32_t number) const SPILLWAY_REQUIRES(mutex_);
  /// Returns whether there is a call to run, or a reason to run no more.
  [[nodiscard]] bool is_wanted() const SPILLWAY_REQUIRES(mutex_);

  const CommunicatorOptions options_;
  // The first is of all ranks: the thread makes it before the constructor returns. From then on
  // they are the control thread's.
  std::vector<std::unique_ptr<Collectives>> groups_;

  Mutex mutex_;
  Condition submitted_changed_;  // the thread waits for it
  Condition finished_changed_;   // the control thread does
  std::vector<Entry> ring_ SPILLWAY_GUARDED_BY(mutex_);
  std::uint32_t submitted_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::uint32_t finished_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  // The first call that failed, if there is a failure.
  std::uint32_t failed_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  // Also that of making the transport.
  std::exception_ptr failure_ SPILLWAY_GUARDED_BY(mutex_);
  // Why this rank has abandoned the group.
  std::string reason_ SPILLWAY_GUARDED_BY(mutex_);
  // Null before the transport lives; of no use after a failure.
  Transfers* transfers_ SPILLWAY_GUARDED_BY(mutex_) = nullptr;
  WakeSignal* wake_ SPILLWAY_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ SPILLWAY_GUARDED_BY(mutex_) = false;
  bool abandoned_ SPILLWAY_GUARDED_BY(mutex_) = false;
  // Works of the control thread: one within the other.
  std::uint32_t works_ SPILLWAY_GUARDED_BY(mutex_) = 0;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace spillway::comm::detail
