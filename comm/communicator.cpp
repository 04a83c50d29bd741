#include "comm/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/detail/ordered_sum.hpp"
#include "comm/single/single_communicator.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

void check_size(std::string_view operation, std::size_t actual, std::size_t wanted) {
  if (actual == wanted) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{}: a buffer of {} bytes where {} are needed", operation, actual, wanted));
}

}  // namespace

Communicator::Communicator(Rank rank, std::uint32_t ranks) : rank_(rank), ranks_(ranks) {
  SPILLWAY_ASSERT(rank.value() < ranks);
  constexpr std::size_t kLargestElement = 4;
  tails_.resize(kLargestElement * ranks * (ranks - 1));
}

void Communicator::all_gather(Source shard, Target all) {
  check_size("all_gather", all.size(), shard.size() * ranks_);
  do_all_gather(shard, all);
  count(Operation::all_gather, shard.size() * (ranks_ - 1));
}

void Communicator::reduce_scatter(Source all, Target shard, DType dtype) {
  check_size("reduce_scatter", all.size(), shard.size() * ranks_);
  check(shard.size() % size_of(dtype) == 0, ErrorCode::invalid_argument,
        "reduce_scatter: a shard must hold whole elements");
  do_reduce_scatter(all, shard, dtype);
  count(Operation::reduce_scatter, shard.size() * (ranks_ - 1));
}

void Communicator::broadcast(Target data, Rank root) {
  check_root(root);
  do_broadcast(data, root);
  const bool last_of_ring = (rank_.value() + 1) % ranks_ == root.value();
  count(Operation::broadcast, last_of_ring ? 0 : data.size());
}

void Communicator::all_to_all(Source source, Target target) {
  check_size("all_to_all", target.size(), source.size());
  check(source.size() % ranks_ == 0, ErrorCode::invalid_argument,
        "all_to_all: a buffer must divide into as many parts as there are ranks");
  do_all_to_all(source, target);
  count(Operation::all_to_all, source.size() / ranks_ * (ranks_ - 1));
}

void Communicator::send(Source data, Rank to) {
  check_peer(to);
  do_send(data, to);
  count(Operation::send, data.size());
}

void Communicator::receive(Target data, Rank from) {
  check_peer(from);
  do_receive(data, from);
}

void Communicator::all_reduce(Target data, DType dtype) {
  const std::size_t shard = shard_bytes(data.size(), dtype);
  const Target head = data.first(shard * ranks_);
  const Target mine = head.subspan(shard * rank_.value(), shard);
  reduce_scatter(head, mine, dtype);
  all_gather(mine, head);
  all_reduce_tail(data.subspan(head.size()), dtype);
}

void Communicator::reduce(Target data, DType dtype, Rank root) {
  check_root(root);
  const std::size_t shard = shard_bytes(data.size(), dtype);
  const Target head = data.first(shard * ranks_);
  const Target mine = head.subspan(shard * rank_.value(), shard);
  reduce_scatter(head, mine, dtype);
  gather(mine, rank_ == root ? head : Target{}, root);
  all_reduce_tail(data.subspan(head.size()), dtype);
}

void Communicator::gather(Source shard, Target all, Rank root) {
  check_root(root);
  if (rank_ != root) return send(shard, root);
  check_size("gather", all.size(), shard.size() * ranks_);
  for (std::uint32_t from = 0; from < ranks_; ++from) {
    const Target part = all.subspan(shard.size() * from, shard.size());
    if (Rank{from} != root) {
      receive(part, Rank{from});
    } else if (part.data() != shard.data()) {
      std::ranges::copy(shard, part.begin());
    }
  }
}

void Communicator::scatter(Source all, Target shard, Rank root) {
  check_root(root);
  if (rank_ != root) return receive(shard, root);
  check_size("scatter", all.size(), shard.size() * ranks_);
  for (std::uint32_t to = 0; to < ranks_; ++to) {
    const Source part = all.subspan(shard.size() * to, shard.size());
    if (Rank{to} != root) {
      send(part, Rank{to});
    } else if (part.data() != shard.data()) {
      std::ranges::copy(part, shard.begin());
    }
  }
}

Bytes Communicator::sent(Operation operation) const {
  return sent_[static_cast<std::size_t>(operation)];
}

Bytes Communicator::sent() const {
  Bytes total;
  for (const Bytes bytes : sent_) total += bytes;
  return total;
}

void Communicator::count(Operation operation, std::size_t bytes) {
  sent_[static_cast<std::size_t>(operation)] += Bytes{bytes};
}

void Communicator::check_peer(Rank peer) const {
  if (peer.value() < ranks_ && peer != rank_) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("rank {} of {} has no peer {}", rank_.value(), ranks_, peer.value()));
}

void Communicator::check_root(Rank root) const {
  if (root.value() < ranks_) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("root {} is not below the number of ranks, {}", root.value(), ranks_));
}

std::size_t Communicator::shard_bytes(std::size_t bytes, DType dtype) const {
  check(bytes % size_of(dtype) == 0, ErrorCode::invalid_argument,
        "a buffer to sum must hold whole elements");
  return bytes / size_of(dtype) / ranks_ * size_of(dtype);
}

void Communicator::all_reduce_tail(Target tail, DType dtype) {
  if (tail.empty()) return;
  const Target all = Target{tails_}.first(tail.size() * ranks_);
  all_gather(tail, all);
  detail::ordered_sum(
      ranks_, [&](std::uint32_t rank) { return all.data() + tail.size() * rank; }, tail, dtype);
}

std::unique_ptr<Communicator> make_communicator(std::string_view backend) {
  if (backend == "single") return std::make_unique<SingleCommunicator>();
  if (backend == "threads") {
    throw Error(ErrorCode::invalid_argument,
                "the ranks of a \"threads\" group are made by ThreadGroup, all at once");
  }
  if (backend == "mpi" || backend == "nccl") {
    throw Error(ErrorCode::not_supported,
                fmt::format("this build has no {} communication; use single", backend));
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown communication backend \"{}\"; use single", backend));
}

}  // namespace spillway::comm
