#include "comm/detail/collectives.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "comm/detail/ordered_sum.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

/// A multiple of every element's size.
constexpr std::size_t kMessageUnit = 64;
/// Below 2^31, which MPI cannot count, by a margin that costs nothing.
constexpr std::size_t kLargestMessage = std::size_t{1} << 30;

std::size_t message_bytes(const CommunicatorOptions& options, std::uint32_t ranks) {
  const std::size_t wanted = options.piece.value() / ranks / kMessageUnit * kMessageUnit;
  return std::clamp(wanted, kMessageUnit, kLargestMessage);
}

void copy(std::span<const std::byte> source, std::span<std::byte> target) {
  if (source.data() != target.data()) std::ranges::copy(source, target.begin());
}

}  // namespace

class Collectives::Parts {
 public:
  Parts(std::size_t bytes, std::size_t element, std::uint32_t ranks)
      : elements_(bytes / element), element_(element), ranks_(ranks) {}

  template <class Span>
  [[nodiscard]] Span of(Rank rank, Span all) const {
    const std::size_t first = begin(rank.value());
    return all.subspan(first, begin(rank.value() + 1) - first);
  }
  [[nodiscard]] std::size_t largest() const { return (elements_ + ranks_ - 1) / ranks_ * element_; }

 private:
  [[nodiscard]] std::size_t begin(std::uint32_t rank) const {
    return elements_ * rank / ranks_ * element_;
  }

  std::size_t elements_;
  std::size_t element_;
  std::uint32_t ranks_;
};

Collectives::Collectives(Transfers& transfers, Members members, const CommunicatorOptions& options)
    : transfers_(transfers),
      members_(std::move(members)),
      rank_(members_.rank()),
      ranks_(members_.ranks()),
      message_bytes_(message_bytes(options, ranks_)),
      headers_(ranks_),
      addends_(ranks_),
      senders_(ranks_),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(
          ranks_ == 1 ? 0 : 2 * message_bytes_ * ranks_)) {}

void Collectives::run(const Call& call) {
  operation_ = call.operation;
  if (!call.any_of.empty()) {
    Call from_one = call;
    from_one.from = first_to_send(call.any_of);
    exchange(from_one);
    *call.sender = from_one.from;
    return;
  }
  if (is_between_two(operation_)) return exchange(call);
  agree(call);
  const std::size_t bytes = bytes_of_all(call, ranks_);
  const Parts parts(bytes, 1, ranks_);
  const Parts sums(bytes, size_of(call.types.addend), ranks_);
  switch (operation_) {
    case Operation::all_gather:
      copy(call.source, parts.of(rank_, call.target));
      return all_gather(call.target, parts);
    case Operation::reduce_scatter:
      return reduce_scatter(call.source, sums, call.target, call.types);
    case Operation::all_reduce:
      reduce_scatter(call.source, sums, sums.of(rank_, call.target), call.types);
      return all_gather(call.target, sums);
    case Operation::reduce:
      reduce_scatter(call.source, sums, sums.of(rank_, call.target), call.types);
      return gather(sums.of(rank_, call.source), call.target, sums, call.root);
    case Operation::gather: return gather(call.source, call.target, parts, call.root);
    case Operation::scatter: return scatter(call.source, call.target, parts, call.root);
    case Operation::broadcast: return broadcast(call.target, call.root);
    case Operation::all_to_all: return all_to_all(call.source, call.target, parts);
    case Operation::barrier:  // every rank's header has come
    case Operation::send:
    case Operation::receive:
    case Operation::exchange: return;
  }
}

void Collectives::agree(const Call& call) {
  const Header mine{.number = ++collectives_,
                    .bytes = bytes_of_all(call, ranks_),
                    .message_bytes = message_bytes_,
                    .ranks = ranks_,
                    .root = call.root.value(),
                    .group = members_.tag(),
                    .operation = call.operation,
                    .types = call.types};
  headers_[rank_.value()] = mine;
  const std::uint64_t first = started();
  for (std::uint32_t step = 1; step < ranks_; ++step) {
    receive(before(step), as_writable_bytes(headers_[before(step).value()]));
  }
  for (std::uint32_t step = 1; step < ranks_; ++step) {
    send(after(step), as_bytes(headers_[rank_.value()]));
  }
  // Each is compared as it comes: a rank that does something else may take no header of this one.
  for (std::uint32_t step = 1; step < ranks_; ++step) {
    wait(first + step);
    const Header& theirs = headers_[before(step).value()];
    if (theirs == mine) continue;
    disagree(mine, before(step), theirs);
  }
  wait(started());
}

void Collectives::all_gather(Target all, const Parts& parts) {
  const Source mine = parts.of(rank_, all);
  in_pieces(
      parts.largest(),
      [&](std::size_t k) {
        for (std::uint32_t step = 1; step < ranks_; ++step) {
          send(after(step), piece(mine, k));
          receive(before(step), piece(parts.of(before(step), all), k));
        }
      },
      [](std::size_t) {});
}

void Collectives::reduce_scatter(Source all, const Parts& parts, Target result, SumTypes types) {
  const Source mine = parts.of(rank_, all);
  const auto scratch = [&](Rank from, std::size_t k) {
    std::byte* const start = scratch_.get() + (2 * from.value() + k % 2) * message_bytes_;
    return Target{start, piece(mine, k).size()};
  };
  const auto start = [&](std::size_t k) {
    for (std::uint32_t step = 1; step < ranks_; ++step) {
      send(after(step), piece(parts.of(after(step), all), k));
      receive(before(step), scratch(before(step), k));
    }
  };
  const auto sum = [&](std::size_t k) {
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      addends_[rank] =
          rank == rank_.value() ? piece(mine, k).data() : scratch(Rank{rank}, k).data();
    }
    const std::size_t first = k * message_bytes_ / size_of(types.addend);
    const std::size_t count = piece(mine, k).size() / size_of(types.addend);
    const std::size_t size = size_of(types.result);
    if (count > 0) ordered_sum(addends_, result.subspan(first * size, count * size), types);
  };
  in_pieces(parts.largest(), start, sum);
}

void Collectives::all_to_all(Source source, Target target, const Parts& parts) {
  copy(parts.of(rank_, source), parts.of(rank_, target));
  in_pieces(
      parts.largest(),
      [&](std::size_t k) {
        for (std::uint32_t step = 1; step < ranks_; ++step) {
          send(after(step), piece(parts.of(after(step), source), k));
          receive(before(step), piece(parts.of(before(step), target), k));
        }
      },
      [](std::size_t) {});
}

// A chain from the root to the rank before it: each forwards a piece while it receives the next.
void Collectives::broadcast(Target data, Rank root) {
  if (ranks_ == 1) return;
  in_pieces(
      data.size(),
      [&](std::size_t k) {
        if (rank_ != root) receive(before(1), piece(data, k));
      },
      [&](std::size_t k) {
        if (after(1) != root) send(after(1), piece(data, k));
      });
}

void Collectives::gather(Source shard, Target all, const Parts& parts, Rank root) {
  if (rank_ == root) copy(shard, parts.of(rank_, all));
  in_pieces(
      parts.largest(),
      [&](std::size_t k) {
        if (rank_ != root) return send(root, piece(shard, k));
        for (std::uint32_t step = 1; step < ranks_; ++step) {
          receive(before(step), piece(parts.of(before(step), all), k));
        }
      },
      [](std::size_t) {});
}

void Collectives::scatter(Source all, Target shard, const Parts& parts, Rank root) {
  if (rank_ == root) copy(parts.of(rank_, all), shard);
  in_pieces(
      parts.largest(),
      [&](std::size_t k) {
        if (rank_ != root) return receive(root, piece(shard, k));
        for (std::uint32_t step = 1; step < ranks_; ++step) {
          send(after(step), piece(parts.of(after(step), all), k));
        }
      },
      [](std::size_t) {});
}

Rank Collectives::first_to_send(std::span<const Rank> any_of) {
  senders_.clear();
  for (const Rank one : any_of) senders_.push_back(members_.in_job(one));
  const std::optional<Rank> first = transfers_.wait_for_any(senders_);
  if (!first.has_value()) {
    std::vector<std::uint32_t> numbers;
    numbers.reserve(senders_.size());
    for (const Rank sender : senders_) numbers.push_back(sender.value());
    give_up_on(fmt::format("{}", fmt::join(numbers, " or ")));
  }
  return any_of[static_cast<std::size_t>(std::ranges::find(senders_, *first) - senders_.begin())];
}

// The receiver compares sizes, and ends the group if they differ.
void Collectives::exchange(const Call& call) {
  const bool sends = call.operation != Operation::receive;
  const bool receives = call.operation != Operation::send;
  Header mine{.message_bytes = message_bytes_,
              .ranks = ranks_,
              .group = members_.tag(),
              .operation = call.operation};
  Header& theirs = headers_[call.from.value()];
  headers_[rank_.value()] = mine;
  headers_[rank_.value()].bytes = call.source.size();
  const std::uint64_t first = started();
  if (receives) receive(call.from, as_writable_bytes(theirs));
  if (sends) send(call.root, as_bytes(headers_[rank_.value()]));
  if (receives) {
    wait(first + 1);
    mine.bytes = call.target.size();
    const bool fits =
        theirs.number == 0 && theirs.group == mine.group && theirs.bytes == mine.bytes;
    if (!fits) disagree(mine, call.from, theirs);
  }
  wait(started());
  in_pieces(
      std::max(call.source.size(), call.target.size()),
      [&](std::size_t k) {
        if (sends) send(call.root, piece(call.source, k));
        if (receives) receive(call.from, piece(call.target, k));
      },
      [](std::size_t) {});
}

template <class Start, class Finish>
void Collectives::in_pieces(std::size_t bytes, Start start, Finish finish) {
  const std::size_t pieces = (bytes + message_bytes_ - 1) / message_bytes_;
  if (pieces > 0) start(0);
  for (std::size_t k = 0; k < pieces; ++k) {
    const std::uint64_t until_here = started();
    if (k + 1 < pieces) start(k + 1);
    wait(until_here);
    finish(k);
  }
  wait(started());
}

template <class Span>
Span Collectives::piece(Span data, std::size_t k) const {
  const std::size_t first = std::min(k * message_bytes_, data.size());
  return data.subspan(first, std::min(message_bytes_, data.size() - first));
}

void Collectives::send(Rank to, Source data) { transfers_.send(members_.in_job(to), data); }

void Collectives::receive(Rank from, Target data) {
  transfers_.receive(members_.in_job(from), data);
}

void Collectives::wait(std::uint64_t count) {
  const std::optional<Rank> late = transfers_.wait(count);
  if (late.has_value()) give_up_on(fmt::format("{}", late->value()));
}

void Collectives::give_up_on(std::string_view other) const {
  throw Error(
      ErrorCode::device_error,
      fmt::format("rank {} waited {} s for rank {} in {} (collective {}): rank {} has died, "
                  "hangs, or needs a larger timeout_ms",
                  transfers_.rank().value(),
                  static_cast<double>(transfers_.timeout().count()) / 1e3, other,
                  name_of(operation_), collectives_, other));
}

void Collectives::disagree(const Header& mine, Rank other, const Header& theirs) const {
  throw Error(ErrorCode::invalid_argument,
              disagreement(transfers_.rank(), mine, members_.in_job(other), theirs));
}

Rank Collectives::after(std::uint32_t steps) const {
  return Rank{(rank_.value() + steps) % ranks_};
}

Rank Collectives::before(std::uint32_t steps) const {
  return Rank{(rank_.value() + ranks_ - steps) % ranks_};
}

}  // namespace spillway::comm::detail
