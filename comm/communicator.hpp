// Communicator: this rank's end of a group of ranks, and the collective operations among them.
// Owned and called by one thread (the control thread of the rank). Every rank of the group calls
// the same collectives in the same order with the same sizes; each call returns when this rank's
// buffers may be used again. What a backend must implement are the seven private operations at the
// end; the rest is composed of them, here, once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"

namespace spillway::comm {

/// Names the operations that move bytes, for the counters.
enum class Operation : std::uint8_t {
  all_gather,
  reduce_scatter,
  broadcast,
  all_to_all,
  send,
  barrier,
};
inline constexpr std::size_t kOperations = 6;

/// Sums are of `DType` elements: added in fp32 in the order of ranks 0, 1, 2, ... and rounded to
/// the type once (16-bit types to nearest even), so that every rank gets the same bits in every
/// run. Sizes must fit: a buffer "of all ranks" is `ranks()` times as large as one "of a rank".
/// Buffers of a call do not overlap, except where this says so. Errors are
/// `Error{invalid_argument}`.
class Communicator {
 public:
  using Source = std::span<const std::byte>;
  using Target = std::span<std::byte>;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }

  /// `all` becomes the shards of ranks 0, 1, ... one after the other. `shard` may be this rank's
  /// part of `all`.
  void all_gather(Source shard, Target all);
  /// `shard` becomes this rank's part of the sum of every rank's `all`. `shard` may be this rank's
  /// part of `all`.
  void reduce_scatter(Source all, Target shard, DType dtype);
  /// `data` of every rank becomes `data` of `root`.
  void broadcast(Target data, Rank root);
  /// Part j of `source` becomes part `rank()` of rank j's `target`.
  void all_to_all(Source source, Target target);
  /// Sends to another rank, which receives as many bytes. May block until it does.
  void send(Source data, Rank to);
  /// Receives from another rank, which sends as many bytes.
  void receive(Target data, Rank from);
  /// Returns once every rank has called it.
  void barrier() { do_barrier(); }

  /// `data` of every rank becomes the sum of all of them.
  void all_reduce(Target data, DType dtype);
  /// `data` of `root` becomes the sum of all of them; of the others, it is scratch.
  void reduce(Target data, DType dtype, Rank root);
  /// At `root`, `all` becomes the shards of all ranks in order; elsewhere `all` is unused (empty).
  void gather(Source shard, Target all, Rank root);
  /// `shard` becomes this rank's part of `root`'s `all`; elsewhere `all` is unused (empty).
  void scatter(Source all, Target shard, Rank root);

  /// Returns bytes that this rank has sent, by the operation that moved them, counted as a ring
  /// moves them: (ranks - 1) shards for all_gather, reduce_scatter and all_to_all; the buffer once
  /// for a broadcast, except on the last rank of the ring, the one before the root.
  [[nodiscard]] Bytes sent(Operation operation) const;
  [[nodiscard]] Bytes sent() const;

 protected:
  Communicator(Rank rank, std::uint32_t ranks);

 private:
  // Arguments have been checked. Named as their public callers.
  virtual void do_all_gather(Source shard, Target all) = 0;
  virtual void do_reduce_scatter(Source all, Target shard, DType dtype) = 0;
  virtual void do_broadcast(Target data, Rank root) = 0;
  virtual void do_all_to_all(Source source, Target target) = 0;
  virtual void do_send(Source data, Rank to) = 0;
  virtual void do_receive(Target data, Rank from) = 0;
  virtual void do_barrier() = 0;

  void count(Operation operation, std::size_t bytes);
  void check_peer(Rank peer) const;
  void check_root(Rank root) const;
  /// Returns bytes of one rank's shard of `bytes` bytes of whole elements; what is left is the
  /// tail.
  [[nodiscard]] std::size_t shard_bytes(std::size_t bytes, DType dtype) const;
  /// Sums the fewer than `ranks()` elements that do not divide into shards.
  void all_reduce_tail(Target tail, DType dtype);

  Rank rank_;
  std::uint32_t ranks_;
  std::array<Bytes, kOperations> sent_{};
  std::vector<std::byte> tails_;  // every rank's tail, while one is summed
};

/// `single` is a group of this process alone. `threads` groups are made by `ThreadGroup`; `mpi` and
/// `nccl` are not part of this build: `Error{not_supported}`.
std::unique_ptr<Communicator> make_communicator(std::string_view backend);

}  // namespace spillway::comm
