// Communicator: this rank's end of a group of ranks, and the collective operations among them on
// host memory. Owned and called by one thread, the control thread of the rank. An operation is
// started and gives a Ticket; a thread of the communicator's own makes progress, so that the caller
// neither waits nor polls for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/dtype.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/ticket.hpp"
#include "runtime/base/units.hpp"
#include "runtime/base/wake_signal.hpp"

namespace spillway::comm {

struct LaunchEnvironment;
namespace detail {
class Transport;
}

enum class Operation : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  send,
  receive,
  exchange,
  barrier,
};
inline constexpr std::size_t kOperations = 12;

[[nodiscard]] std::string_view name_of(Operation operation);

/// Bounds how late a rank may be allowed to be: a week.
inline constexpr std::uint32_t kMostTimeoutSeconds = 604'800;

struct CommunicatorOptions {
  std::size_t depth = 64;              ///< operations started and not yet over
  std::uint32_t timeout_ms = 300'000;  ///< without progress; a rank may be this late
  /// Bounds what moves between two waits, from all ranks together. Scratch memory is twice this.
  Bytes piece = 8_MiB;
};

/// Element types of a sum's addends and of its result: equal, or a result of fp32.
struct SumTypes {
  DType addend = DType::fp32;
  DType result = DType::fp32;

  bool operator==(const SumTypes&) const = default;
};

/// Operations of one communicator run one after another in the order in which they were started, as
/// on a stream; every rank starts the same collectives in the same order, with the same sizes. A
/// ticket is over when this rank's buffers may be used again. Tickets do not outlive the
/// communicator. Starting never waits for other ranks; it waits for an earlier operation only if
/// `depth` of them are under way.
///
/// A buffer "of all ranks" is `ranks()` times as large as one "of a rank". Buffers of a call do not
/// overlap, except where this says so. Sizes that do not fit are `Error{invalid_argument}`, thrown
/// at once. Sums add in fp32 in the order of ranks 0, 1, 2, ... and are rounded to the result's
/// type once (16-bit types to nearest even): every rank gets the same bits in every run.
///
/// Whatever else fails is `Error{device_error}`, thrown by the ticket: a rank that has failed, does
/// not answer within `timeout_ms`, or calls something else (`Error{invalid_argument}`). The message
/// names the rank. The group is over then, on every rank: each later ticket throws the same.
class Communicator {
 public:
  using Source = std::span<const std::byte>;
  using Target = std::span<std::byte>;
  using MakeTransport = std::function<std::unique_ptr<detail::Transport>()>;

  /// Makes the transport, for backends, by `make` on the thread that makes progress, which alone
  /// uses it.
  Communicator(const MakeTransport& make, const CommunicatorOptions& options);
  /// Waits for what was started. While an exception is on its way, it calls `abandon` instead.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] Rank rank() const;
  [[nodiscard]] std::uint32_t ranks() const;
  [[nodiscard]] std::uint32_t timeout_ms() const;

  /// Returns a group of some of these ranks: its rank i is rank `members[i]` of this one. Each of
  /// them, this rank included, calls this with the same list; `Error{invalid_argument}` else.
  /// Operations of both groups run in the order in which they were started; ranks that take part in
  /// two operations start them in the same order. What ends one group ends the other; errors name
  /// ranks by their numbers in the first. The last group to go waits for what was started. A
  /// subgroup takes as much scratch memory again, for as long.
  [[nodiscard]] std::unique_ptr<Communicator> subgroup(std::span<const Rank> members);

  /// Gathers the shards of ranks 0, 1, ... one after the other in `all`. `shard` may be this rank's
  /// part of `all`.
  Ticket all_gather(Source shard, Target all);
  /// Sets `shard` to this rank's part of the sum of every rank's `all`. With equal types it may be
  /// this rank's part of `all`.
  Ticket reduce_scatter(Source all, Target shard, SumTypes types);
  /// Sums `data` over all ranks, in place.
  Ticket all_reduce(Target data, DType dtype);
  /// Copies `data` of `root` to that of every rank.
  Ticket broadcast(Target data, Rank root);
  /// Sums `data` over all ranks into that of `root`; the others' is scratch.
  Ticket reduce(Target data, DType dtype, Rank root);
  /// Gathers the shards of all ranks in order in `root`'s `all`; elsewhere it is empty. `shard` may
  /// be this rank's part of `all`.
  Ticket gather(Source shard, Target all, Rank root);
  /// Sets `shard` to this rank's part of `root`'s `all`; elsewhere `all` is empty. `shard` may be
  /// this rank's part of `all`.
  Ticket scatter(Source all, Target shard, Rank root);
  /// Copies part j of `source` to part `rank()` of rank j's `target`.
  Ticket all_to_all(Source source, Target target);
  /// Sends to another rank, which receives as many bytes. Ends when it has: what was started later
  /// waits for that.
  Ticket send(Source data, Rank to);
  Ticket receive(Target data, Rank from);
  /// Receives from the rank of `any_of`, not empty, that sends first; if several have sent already,
  /// from the first in the list. Sets `sender` to that rank at the end; both live until then. Which
  /// rank it is may differ from run to run. Whatever the ranks of the list start with this one
  /// meanwhile is taken for such a send, and must be one.
  Ticket receive(Target data, std::span<const Rank> any_of, Rank& sender);
  /// Sends to a rank and receives from a rank at once, so that ranks may do it in a ring. The other
  /// end of each is an exchange too.
  Ticket exchange(Source source, Rank to, Target target, Rank from);
  /// Starts a barrier, which ends once every rank has started it.
  Ticket barrier();

  /// Notifies `wake` of operations that end from now on, subgroups' too; null: nobody.
  void wake_with(WakeSignal* wake);

  /// Informs the other ranks that this one has failed, with the reason: whatever they wait for
  /// throws, naming this rank and `reason`. Operations of this rank end at once, with an error.
  void abandon(std::string_view reason) noexcept;

  /// Bytes that this rank has sent by starting `operation`, counted as a ring moves them: for
  /// all_gather, reduce_scatter and all_to_all (ranks - 1) shards; the buffer once for a broadcast,
  /// except on the last rank of the ring, the one before the root. An all_reduce counts as a
  /// reduce_scatter and an all_gather, a reduce as a reduce_scatter and a gather. A subgroup counts
  /// its own.
  [[nodiscard]] Bytes sent(Operation operation) const;
  [[nodiscard]] Bytes sent() const;

 private:
  friend class AtWork;
  class Implementation;
  explicit Communicator(std::unique_ptr<Implementation> implementation);

  std::unique_ptr<Implementation> implementation_;
};

/// As long as one lives, the other ranks wait for this one however late it is: it works for itself
/// and says so. Does not outlive its communicator.
class AtWork {
 public:
  /// No effect if `ranks` is null.
  explicit AtWork(Communicator* ranks);
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
  ~AtWork();

 private:
  Communicator* ranks_;
};

/// Makes for `single` a group of this process alone, for `mpi` one of the processes that mpirun or
/// srun has started (`Error{not_supported}` where that cannot be). ThreadGroup makes the ranks of
/// `threads`, and the next function those of `tcp`.
[[nodiscard]] std::unique_ptr<Communicator> make_communicator(
    std::string_view backend, const CommunicatorOptions& options = {});

/// Joins the processes that meet where `launch` says, over TCP sockets. Blocks until all have come,
/// or throws `Error{device_error}` naming the ranks missing after `timeout_ms`. Any other fault is
/// an Error on all ranks that have come.
[[nodiscard]] std::unique_ptr<Communicator> make_tcp_communicator(
    const LaunchEnvironment& launch, const CommunicatorOptions& options = {});

/// Informs the processes that meet where `launch` says that this one cannot be one of them, as
/// `error` says: all of them end with that. Tries for 10 s, in which rank 0 may still come.
void report_failed_launch(const LaunchEnvironment& launch, const Error& error) noexcept;

}  // namespace spillway::comm
