#include "comm/detail/call.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

void check_size(Operation operation, std::size_t actual, std::size_t wanted) {
  if (actual == wanted) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: a buffer of {} bytes where {} are needed", name_of(operation),
                          actual, wanted));
}

void check_whole_elements(Operation operation, std::size_t bytes, DType dtype) {
  if (bytes % size_of(dtype) == 0) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: {} bytes are no whole number of {} elements", name_of(operation),
                          bytes, name_of(dtype)));
}

void check_peer(Operation operation, Rank peer, Rank rank, std::uint32_t ranks) {
  if (peer.value() < ranks && peer != rank) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: rank {} of {} has no peer {}", name_of(operation), rank.value(),
                          ranks, peer.value()));
}

void check_root(Operation operation, Rank root, std::uint32_t ranks) {
  if (root.value() < ranks) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: root {} is not below the number of ranks, {}", name_of(operation),
                          root.value(), ranks));
}

void check_reduce_scatter(const Call& call, std::uint32_t ranks) {
  const auto [addend, result] = call.types;
  check(result == addend || result == DType::fp32, ErrorCode::invalid_argument,
        "reduce_scatter: the result has the type of the addends or fp32");
  check_whole_elements(call.operation, call.target.size(), result);
  const std::size_t part = call.target.size() / size_of(result) * size_of(addend);
  check_size(call.operation, call.source.size(), part * ranks);
}

/// Returns what of `bytes` is a rank's own part when a ring sums them in as even parts as there are
/// ranks.
std::size_t own_part(std::size_t bytes, DType dtype, Rank rank, std::uint32_t ranks) {
  const std::size_t elements = bytes / size_of(dtype);
  const std::size_t first = elements * rank.value() / ranks;
  return (elements * (rank.value() + 1) / ranks - first) * size_of(dtype);
}

std::size_t bytes_sent(const Call& call, Rank rank, std::uint32_t ranks) {
  const std::size_t others = ranks - 1;
  const std::size_t own = own_part(call.target.size(), call.types.addend, rank, ranks);
  const bool is_root = rank == call.root;
  switch (call.operation) {
    case Operation::all_gather: return call.source.size() * others;
    case Operation::reduce_scatter:
    case Operation::all_to_all: return call.source.size() / ranks * others;
    case Operation::all_reduce: return call.target.size() - own + own * others;
    case Operation::broadcast: {
      const bool last_of_ring = (rank.value() + 1) % ranks == call.root.value();
      return last_of_ring ? 0 : call.target.size();
    }
    case Operation::reduce: return call.target.size() - (is_root ? own : 0);
    case Operation::gather: return is_root ? 0 : call.source.size();
    case Operation::scatter: return is_root ? call.target.size() * others : 0;
    case Operation::send:
    case Operation::exchange: return call.source.size();
    case Operation::receive:
    case Operation::barrier: break;
  }
  return 0;
}

}  // namespace

void check_call(const Call& call, Rank rank, std::uint32_t ranks) {
  const Operation operation = call.operation;
  const std::size_t at_root = rank == call.root ? ranks : 0;
  switch (operation) {
    case Operation::all_gather:
      return check_size(operation, call.target.size(), call.source.size() * ranks);
    case Operation::reduce_scatter: return check_reduce_scatter(call, ranks);
    case Operation::all_reduce:
      return check_whole_elements(operation, call.target.size(), call.types.addend);
    case Operation::broadcast: return check_root(operation, call.root, ranks);
    case Operation::reduce:
      check_root(operation, call.root, ranks);
      return check_whole_elements(operation, call.target.size(), call.types.addend);
    case Operation::gather:
      check_root(operation, call.root, ranks);
      return check_size(operation, call.target.size(), call.source.size() * at_root);
    case Operation::scatter:
      check_root(operation, call.root, ranks);
      return check_size(operation, call.source.size(), call.target.size() * at_root);
    case Operation::all_to_all:
      check_size(operation, call.target.size(), call.source.size());
      return check(call.source.size() % ranks == 0, ErrorCode::invalid_argument,
                   "all_to_all: a buffer must divide into as many parts as there are ranks");
    case Operation::send: return check_peer(operation, call.root, rank, ranks);
    case Operation::receive:
      if (call.any_of.empty()) return check_peer(operation, call.from, rank, ranks);
      for (const Rank one : call.any_of) check_peer(operation, one, rank, ranks);
      return;
    case Operation::exchange:
      check_peer(operation, call.root, rank, ranks);
      return check_peer(operation, call.from, rank, ranks);
    case Operation::barrier: return;
  }
}

bool is_between_two(Operation operation) {
  return operation == Operation::send || operation == Operation::receive ||
         operation == Operation::exchange;
}

std::size_t bytes_of_all(const Call& call, std::uint32_t ranks) {
  if (call.operation == Operation::gather) return call.source.size() * ranks;
  if (call.operation == Operation::scatter) return call.target.size() * ranks;
  if (call.operation == Operation::reduce_scatter) return call.source.size();
  return std::max(call.source.size(), call.target.size());
}

void SentBytes::add(const Call& call, Rank rank, std::uint32_t ranks) {
  sent_[static_cast<std::size_t>(call.operation)] += Bytes{bytes_sent(call, rank, ranks)};
}

Bytes SentBytes::total() const {
  Bytes total;
  for (const Bytes sent : sent_) total += sent;
  return total;
}

}  // namespace spillway::comm::detail
