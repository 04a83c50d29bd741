#include "comm/communicator.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <exception>
#include <utility>

#include "comm/detail/call.hpp"
#include "comm/detail/collectives.hpp"
#include "comm/detail/progress.hpp"
#include "comm/mpi/mpi_backend.hpp"
#include "comm/single/single_transport.hpp"
#include "comm/tcp/tcp_transport.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

constexpr std::array<std::string_view, kOperations> kNames{
    "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce",   "gather",
    "scatter",    "all_to_all",     "send",       "receive",   "exchange", "barrier"};

}  // namespace

std::string_view name_of(Operation operation) {
  return kNames[static_cast<std::size_t>(operation)];
}

class Communicator::Implementation {
 public:
  Implementation(std::shared_ptr<detail::Progress> progress, detail::Collectives& group)
      : progress_(std::move(progress)), group_(group) {}

  ~Implementation() {
    if (std::uncaught_exceptions() > exceptions_) {
      progress_->abandon("it has ended with an error of its own");
    }
  }

  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  [[nodiscard]] Rank rank() const { return group_.members().rank(); }
  [[nodiscard]] std::uint32_t ranks() const { return group_.members().ranks(); }
  [[nodiscard]] detail::Progress& progress() { return *progress_; }
  [[nodiscard]] const detail::SentBytes& sent() const { return sent_; }

  Ticket start(const detail::Call& call) {
    detail::check_call(call, rank(), ranks());
    sent_.add(call, rank(), ranks());
    return progress_->submit(group_, call);
  }

  [[nodiscard]] std::unique_ptr<Implementation> subgroup(std::span<const Rank> members) {
    return std::make_unique<Implementation>(progress_,
                                            progress_->add_subgroup(group_.members(), members));
  }

 private:
  const int exceptions_ = std::uncaught_exceptions();
  detail::SentBytes sent_;
  const std::shared_ptr<detail::Progress> progress_;  // every subgroup's too
  detail::Collectives& group_;
};

Communicator::Communicator(const MakeTransport& make, const CommunicatorOptions& options) {
  auto progress = std::make_shared<detail::Progress>(make, options);
  detail::Collectives& all = progress->all();
  implementation_ = std::make_unique<Implementation>(std::move(progress), all);
}

Communicator::Communicator(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}

Communicator::~Communicator() = default;

Rank Communicator::rank() const { return implementation_->rank(); }

std::uint32_t Communicator::ranks() const { return implementation_->ranks(); }

std::uint32_t Communicator::timeout_ms() const {
  return implementation_->progress().options().timeout_ms;
}

std::unique_ptr<Communicator> Communicator::subgroup(std::span<const Rank> members) {
  return std::unique_ptr<Communicator>(new Communicator(implementation_->subgroup(members)));
}

AtWork::AtWork(Communicator* ranks) : ranks_(ranks) {
  if (ranks_ != nullptr) ranks_->implementation_->progress().begin_work();
}

AtWork::~AtWork() {
  if (ranks_ != nullptr) ranks_->implementation_->progress().end_work();
}

Ticket Communicator::all_gather(Source shard, Target all) {
  return implementation_->start(
      {.operation = Operation::all_gather, .source = shard, .target = all});
}

Ticket Communicator::reduce_scatter(Source all, Target shard, SumTypes types) {
  return implementation_->start(
      {.operation = Operation::reduce_scatter, .source = all, .target = shard, .types = types});
}

Ticket Communicator::all_reduce(Target data, DType dtype) {
  return implementation_->start({.operation = Operation::all_reduce,
                                 .source = data,
                                 .target = data,
                                 .types = {dtype, dtype}});
}

Ticket Communicator::broadcast(Target data, Rank root) {
  return implementation_->start({.operation = Operation::broadcast, .target = data, .root = root});
}

Ticket Communicator::reduce(Target data, DType dtype, Rank root) {
  return implementation_->start({.operation = Operation::reduce,
                                 .source = data,
                                 .target = data,
                                 .types = {dtype, dtype},
                                 .root = root});
}

Ticket Communicator::gather(Source shard, Target all, Rank root) {
  return implementation_->start(
      {.operation = Operation::gather, .source = shard, .target = all, .root = root});
}

Ticket Communicator::scatter(Source all, Target shard, Rank root) {
  return implementation_->start(
      {.operation = Operation::scatter, .source = all, .target = shard, .root = root});
}

Ticket Communicator::all_to_all(Source source, Target target) {
  return implementation_->start(
      {.operation = Operation::all_to_all, .source = source, .target = target});
}

Ticket Communicator::send(Source data, Rank to) {
  return implementation_->start({.operation = Operation::send, .source = data, .root = to});
}

Ticket Communicator::receive(Target data, Rank from) {
  return implementation_->start({.operation = Operation::receive, .target = data, .from = from});
}

Ticket Communicator::receive(Target data, std::span<const Rank> any_of, Rank& sender) {
  check(!any_of.empty(), ErrorCode::invalid_argument, "receive: there is nobody to receive from");
  return implementation_->start(
      {.operation = Operation::receive, .target = data, .any_of = any_of, .sender = &sender});
}

Ticket Communicator::exchange(Source source, Rank to, Target target, Rank from) {
  return implementation_->start({.operation = Operation::exchange,
                                 .source = source,
                                 .target = target,
                                 .root = to,
                                 .from = from});
}

Ticket Communicator::barrier() { return implementation_->start({.operation = Operation::barrier}); }

void Communicator::wake_with(WakeSignal* wake) { implementation_->progress().wake_with(wake); }

void Communicator::abandon(std::string_view reason) noexcept {
  implementation_->progress().abandon(reason);
}

Bytes Communicator::sent(Operation operation) const {
  return implementation_->sent().of(operation);
}

Bytes Communicator::sent() const { return implementation_->sent().total(); }

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
  if (backend == "mpi") {
    const std::chrono::milliseconds limit(options.timeout_ms);
    return std::make_unique<Communicator>([limit] { return detail::make_mpi_transport(limit); },
                                          options);
  }
  if (backend == "tcp") {
    throw Error(ErrorCode::invalid_argument,
                "the ranks of a \"tcp\" group have to know where they meet: "
                "use make_tcp_communicator");
  }
  if (backend == "nccl") {
    throw Error(ErrorCode::invalid_argument,
                "nccl moves the memory of GPUs only, and ranks find each other by mpi or tcp: make "
                "a communicator of these, and a DeviceCommunicator of that");
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown communication backend \"{}\"; use single, mpi or tcp", backend));
}

std::unique_ptr<Communicator> make_tcp_communicator(const LaunchEnvironment& launch,
                                                    const CommunicatorOptions& options) {
  return std::make_unique<Communicator>(
      [&] {
        return detail::make_tcp_transport(launch, std::chrono::milliseconds(options.timeout_ms));
      },
      options);
}

void report_failed_launch(const LaunchEnvironment& launch, const Error& error) noexcept {
  detail::report_failure(launch, error);
}

}  // namespace spillway::comm
