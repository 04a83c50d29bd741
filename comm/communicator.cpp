#include "comm/communicator.hpp"

#include <fmt/format.h>

#include <array>
#include <exception>

#include "comm/detail/progress.hpp"
#include "comm/mpi/mpi_backend.hpp"
#include "comm/single/single_transport.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

constexpr std::array<std::string_view, kOperations> kNames{
    "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce",   "gather",
    "scatter",    "all_to_all",     "send",       "receive",   "exchange", "barrier"};

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

}  // namespace

std::string_view name_of(Operation operation) {
  return kNames[static_cast<std::size_t>(operation)];
}

class Communicator::Implementation {
 public:
  Implementation(const MakeTransport& make, const CommunicatorOptions& options)
      : progress_(make, options) {}

  ~Implementation() {
    if (std::uncaught_exceptions() > exceptions_) {
      progress_.abandon("it has ended with an error of its own");
    }
  }

  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  [[nodiscard]] Rank rank() const { return progress_.rank(); }
  [[nodiscard]] std::size_t ranks() const { return progress_.ranks(); }
  [[nodiscard]] detail::Progress& progress() { return progress_; }
  [[nodiscard]] Bytes sent(Operation operation) const {
    return sent_[static_cast<std::size_t>(operation)];
  }

  /// Starts `call`, with which this rank sends so many bytes.
  Ticket start(const detail::Call& call, std::size_t bytes) {
    sent_[static_cast<std::size_t>(call.operation)] += Bytes{bytes};
    return progress_.submit(call);
  }

  void check_peer(Operation operation, Rank peer) const {
    if (peer.value() < ranks() && peer != rank()) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: rank {} of {} has no peer {}", name_of(operation), rank().value(),
                            ranks(), peer.value()));
  }

  void check_root(Operation operation, Rank root) const {
    if (root.value() < ranks()) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: root {} is not below the number of ranks, {}", name_of(operation),
                            root.value(), ranks()));
  }

  /// Returns bytes that this rank sends when a ring sums `bytes` into as even parts as there are
  /// ranks, and what of that is its own part.
  [[nodiscard]] std::size_t own_part(std::size_t bytes, DType dtype) const {
    const std::size_t elements = bytes / size_of(dtype);
    const std::size_t first = elements * rank().value() / ranks();
    return (elements * (rank().value() + 1) / ranks() - first) * size_of(dtype);
  }

 private:
  const int exceptions_ = std::uncaught_exceptions();
  std::array<Bytes, kOperations> sent_{};
  detail::Progress progress_;
};

Communicator::Communicator(const MakeTransport& make, const CommunicatorOptions& options)
    : implementation_(std::make_unique<Implementation>(make, options)) {}

Communicator::~Communicator() = default;

Rank Communicator::rank() const { return implementation_->rank(); }

std::uint32_t Communicator::ranks() const {
  return static_cast<std::uint32_t>(implementation_->ranks());
}

Ticket Communicator::all_gather(Source shard, Target all) {
  constexpr Operation kThis = Operation::all_gather;
  check_size(kThis, all.size(), shard.size() * ranks());
  return implementation_->start({.operation = kThis, .source = shard, .target = all},
                                shard.size() * (ranks() - 1));
}

Ticket Communicator::reduce_scatter(Source all, Target shard, SumTypes types) {
  constexpr Operation kThis = Operation::reduce_scatter;
  check(types.result == types.addend || types.result == DType::fp32, ErrorCode::invalid_argument,
        "reduce_scatter: the result has the type of the addends or fp32");
  check_whole_elements(kThis, shard.size(), types.result);
  const std::size_t part = shard.size() / size_of(types.result) * size_of(types.addend);
  check_size(kThis, all.size(), part * ranks());
  return implementation_->start(
      {.operation = kThis, .source = all, .target = shard, .types = types}, part * (ranks() - 1));
}

Ticket Communicator::all_reduce(Target data, DType dtype) {
  constexpr Operation kThis = Operation::all_reduce;
  check_whole_elements(kThis, data.size(), dtype);
  const std::size_t own = implementation_->own_part(data.size(), dtype);
  return implementation_->start(
      {.operation = kThis, .source = data, .target = data, .types = {dtype, dtype}},
      data.size() - own + own * (ranks() - 1));
}

Ticket Communicator::broadcast(Target data, Rank root) {
  constexpr Operation kThis = Operation::broadcast;
  implementation_->check_root(kThis, root);
  const bool last_of_ring = (rank().value() + 1) % ranks() == root.value();
  return implementation_->start({.operation = kThis, .target = data, .root = root},
                                last_of_ring ? 0 : data.size());
}

Ticket Communicator::reduce(Target data, DType dtype, Rank root) {
  constexpr Operation kThis = Operation::reduce;
  implementation_->check_root(kThis, root);
  check_whole_elements(kThis, data.size(), dtype);
  const std::size_t own = implementation_->own_part(data.size(), dtype);
  return implementation_->start(
      {.operation = kThis, .source = data, .target = data, .types = {dtype, dtype}, .root = root},
      rank() == root ? data.size() - own : data.size());
}

Ticket Communicator::gather(Source shard, Target all, Rank root) {
  constexpr Operation kThis = Operation::gather;
  implementation_->check_root(kThis, root);
  check_size(kThis, all.size(), rank() == root ? shard.size() * ranks() : 0);
  return implementation_->start({.operation = kThis, .source = shard, .target = all, .root = root},
                                rank() == root ? 0 : shard.size());
}

Ticket Communicator::scatter(Source all, Target shard, Rank root) {
  constexpr Operation kThis = Operation::scatter;
  implementation_->check_root(kThis, root);
  check_size(kThis, all.size(), rank() == root ? shard.size() * ranks() : 0);
  return implementation_->start({.operation = kThis, .source = all, .target = shard, .root = root},
                                rank() == root ? shard.size() * (ranks() - 1) : 0);
}

Ticket Communicator::all_to_all(Source source, Target target) {
  constexpr Operation kThis = Operation::all_to_all;
  check_size(kThis, target.size(), source.size());
  check(source.size() % ranks() == 0, ErrorCode::invalid_argument,
        "all_to_all: a buffer must divide into as many parts as there are ranks");
  return implementation_->start({.operation = kThis, .source = source, .target = target},
                                source.size() / ranks() * (ranks() - 1));
}

Ticket Communicator::send(Source data, Rank to) {
  implementation_->check_peer(Operation::send, to);
  return implementation_->start({.operation = Operation::send, .source = data, .root = to},
                                data.size());
}

Ticket Communicator::receive(Target data, Rank from) {
  implementation_->check_peer(Operation::receive, from);
  return implementation_->start({.operation = Operation::receive, .target = data, .from = from}, 0);
}

Ticket Communicator::exchange(Source source, Rank to, Target target, Rank from) {
  implementation_->check_peer(Operation::exchange, to);
  implementation_->check_peer(Operation::exchange, from);
  return implementation_->start({.operation = Operation::exchange,
                                 .source = source,
                                 .target = target,
                                 .root = to,
                                 .from = from},
                                source.size());
}

Ticket Communicator::barrier() {
  return implementation_->start({.operation = Operation::barrier}, 0);
}

void Communicator::wake_with(WakeSignal* wake) { implementation_->progress().wake_with(wake); }

void Communicator::abandon(std::string_view reason) noexcept {
  implementation_->progress().abandon(reason);
}

Bytes Communicator::sent(Operation operation) const { return implementation_->sent(operation); }

Bytes Communicator::sent() const {
  Bytes total;
  for (std::size_t i = 0; i < kOperations; ++i) total += sent(static_cast<Operation>(i));
  return total;
}

std::unique_ptr<Communicator> make_communicator(std::string_view backend,
                                                const CommunicatorOptions& options) {
  if (backend == "single") {
    return std::make_unique<Communicator>(
        [] { return std::make_unique<detail::SingleTransport>(); }, options);
  }
  if (backend == "threads") {
    throw Error(ErrorCode::invalid_argument,
                "the ranks of a \"threads\" group are made by ThreadGroup, all at once");
  }
  if (backend == "mpi") return std::make_unique<Communicator>(detail::make_mpi_transport, options);
  if (backend == "nccl") {
    throw Error(ErrorCode::not_supported,
                "this build has no nccl communication; use mpi, which moves host memory");
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown communication backend \"{}\"; use single or mpi", backend));
}

}  // namespace spillway::comm
