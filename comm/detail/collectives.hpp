// Collectives: every operation of Communicator among the members of one group, composed of a
// transport's transfers. An operation begins with its headers, which must agree; then its bytes
// move in pieces, and the next piece is under way while one is waited for and summed.
//
// Threads: made by any thread, then the one that makes progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/detail/call.hpp"
#include "comm/detail/header.hpp"
#include "comm/detail/members.hpp"
#include "comm/detail/transfers.hpp"

namespace spillway::comm::detail {

class Collectives {
 public:
  using Source = std::span<const std::byte>;
  using Target = std::span<std::byte>;

  Collectives(Transfers& transfers, Members members, const CommunicatorOptions& options);

  [[nodiscard]] const Members& members() const { return members_; }

  /// Runs `call` until its buffers may be used again. Throws what Communicator promises; the
  /// transport is then of no more use.
  void run(const Call& call);

 private:
  /// Division of a buffer of all ranks into whole elements, as evenly as possible.
  class Parts;

  void agree(const Call& call);
  void all_gather(Target all, const Parts& parts);
  void reduce_scatter(Source all, const Parts& parts, Target result, SumTypes types);
  void all_to_all(Source source, Target target, const Parts& parts);
  void broadcast(Target data, Rank root);
  void gather(Source shard, Target all, const Parts& parts, Rank root);
  void scatter(Source all, Target shard, const Parts& parts, Rank root);
  /// Waits until one of these has started to send, and returns it; of several the first.
  [[nodiscard]] Rank first_to_send(std::span<const Rank> any_of);
  void exchange(const Call& call);

  /// Calls start(k) for the pieces k of at most `bytes` bytes, and finish(k) once what start(k) has
  /// started is over. Piece k + 1 is started before piece k is finished. Returns when all is over.
  template <class Start, class Finish>
  void in_pieces(std::size_t bytes, Start start, Finish finish);
  template <class Span>
  [[nodiscard]] Span piece(Span data, std::size_t k) const;

  void send(Rank to, Source data);
  void receive(Rank from, Target data);
  /// Throws that this rank has waited too long for `other`.
  [[noreturn]] void give_up_on(std::string_view other) const;
  /// Waits for the first `count` transfers, and throws when that takes too long.
  void wait(std::uint64_t count);
  [[nodiscard]] std::uint64_t started() const { return transfers_.started(); }
  [[noreturn]] void disagree(const Header& mine, Rank other, const Header& theirs) const;
  [[nodiscard]] Rank after(std::uint32_t steps) const;
  [[nodiscard]] Rank before(std::uint32_t steps) const;

  Transfers& transfers_;
  const Members members_;
  const Rank rank_;
  const std::uint32_t ranks_;
  const std::size_t message_bytes_;

  Operation operation_ = Operation::barrier;  // under way
  std::uint64_t collectives_ = 0;
  std::vector<Header> headers_;            // by rank
  std::vector<const std::byte*> addends_;  // by rank
  std::vector<Rank> senders_;              // whom a receive may receive from
  std::unique_ptr<std::byte[]> scratch_;   // two pieces of every rank
};

}  // namespace spillway::comm::detail
