#include "comm/baselines/parameter_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "comm/detail/ordered_sum.hpp"
#include "comm/handshake.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

constexpr Rank kServer{0};
constexpr std::string_view kNotOver =
    "a session of a parameter server begins before the one before it is over";

std::uint32_t workers_of(const Communicator& communicator) { return communicator.ranks() - 1; }

std::uint32_t bound_of(const ServerOptions& options, std::uint32_t workers) {
  return is_other_mathematics(options.mode) ? options.staleness : workers;
}

/// Returns the communicator once all ranks have told each other that they want the same.
Communicator& introduced(Communicator& communicator, const ServerOptions& options) {
  const bool geo = options.mode == ServerMode::geo;
  handshake(communicator,
            {.version = "",
             .ranks = communicator.ranks(),
             .settings = fmt::format("mode: {}\nelements: {}\nstaleness: {}\nlocal_steps: {}",
                                     name_of(options.mode), options.elements,
                                     is_other_mathematics(options.mode) ? options.staleness : 0,
                                     geo ? options.local_steps : 0)});
  check(communicator.ranks() > 1, ErrorCode::invalid_argument,
        "a parameter server needs a second rank, which is its worker");
  const std::uint32_t workers = workers_of(communicator);
  check(bound_of(options, workers) >= workers - 1, ErrorCode::invalid_argument,
        fmt::format("of {} workers that pull the same values the last push is stale by {}; a bound "
                    "of {} is not possible",
                    workers, workers - 1, options.staleness));
  check(!geo || options.local_steps > 0, ErrorCode::invalid_argument,
        "a worker of mode geo pushes after 0 local steps; use at least 1");
  return communicator;
}

/// Compares what every rank takes for the number of pushes, and gives the server's values to all.
void begin_session(Communicator& communicator, std::uint32_t pushes, std::span<float> values) {
  std::vector<std::uint32_t> all(communicator.ranks());
  communicator
      .all_gather(std::as_bytes(std::span{&pushes, 1}), std::as_writable_bytes(std::span{all}))
      .wait();
  const auto other = std::ranges::find_if(all, [&](std::uint32_t one) { return one != all[0]; });
  check(other == all.end(), ErrorCode::invalid_argument,
        fmt::format("rank {} begins a session of {} pushes, rank 0 one of {}", other - all.begin(),
                    other == all.end() ? 0 : *other, all[0]));
  communicator.broadcast(std::as_writable_bytes(values), kServer).wait();
}

}  // namespace

std::string_view name_of(ServerMode mode) {
  switch (mode) {
    case ServerMode::synchronous: return "synchronous";
    case ServerMode::asynchronous: return "asynchronous";
    case ServerMode::geo: return "geo";
  }
  return "";
}

bool is_other_mathematics(ServerMode mode) { return mode != ServerMode::synchronous; }

ParameterServer::ParameterServer(Communicator& communicator, const ServerOptions& options,
                                 std::span<const float> values)
    : communicator_(introduced(communicator, options)),
      options_(options),
      values_(values.begin(), values.end()),
      pushed_(options.elements),
      sum_(is_other_mathematics(options.mode) ? 0 : options.elements),
      staleness_(workers_of(communicator), bound_of(options, workers_of(communicator))) {
  check(communicator.rank() == kServer, ErrorCode::invalid_argument,
        "a rank other than 0 makes a parameter server; it is a worker");
  check(values.size() == options.elements, ErrorCode::invalid_argument,
        fmt::format("{} values where a parameter server has {}", values.size(), options.elements));
  candidates_.reserve(workers_of(communicator));
}

void ParameterServer::begin(std::uint32_t pushes) {
  check(rounds_ == 0 && staleness_.is_over(), ErrorCode::invalid_argument, kNotOver);
  begin_session(communicator_, pushes, values_);
  if (is_other_mathematics(options_.mode)) {
    staleness_.begin(pushes);
  } else {
    rounds_ = pushes;
  }
}

void ParameterServer::serve(const Update& update) {
  return is_other_mathematics(options_.mode) ? serve_arrivals(update) : serve_rounds(update);
}

void ParameterServer::serve_rounds(const Update& update) {
  const std::span<std::byte> sum = std::as_writable_bytes(std::span{sum_});
  const std::span<std::byte> addend = std::as_writable_bytes(std::span{pushed_});
  const std::array<const std::byte*, 2> addends{sum.data(), addend.data()};
  for (; rounds_ > 0; --rounds_) {
    communicator_.receive(sum, Rank{1}).wait();
    for (std::uint32_t worker = 2; worker < communicator_.ranks(); ++worker) {
      communicator_.receive(addend, Rank{worker}).wait();
      detail::ordered_sum(addends, sum, {});
    }
    update(values_, sum_, {.worker = kServer, .staleness = 0});
    for (std::uint32_t worker = 1; worker < communicator_.ranks(); ++worker) {
      communicator_.send(std::as_bytes(std::span{values_}), Rank{worker}).wait();
    }
  }
}

void ParameterServer::serve_arrivals(const Update& update) {
  while (!staleness_.is_over()) {
    list_candidates();
    Push push;
    communicator_.receive(std::as_writable_bytes(std::span{pushed_}), candidates_, push.worker)
        .wait();
    push.staleness = staleness_.push(push.worker.value() - 1);
    update(values_, pushed_, push);
    communicator_.send(std::as_bytes(std::span{values_}), push.worker).wait();
  }
}

void ParameterServer::list_candidates() {
  candidates_.clear();
  for (std::uint32_t worker = 1; worker < communicator_.ranks(); ++worker) {
    if (staleness_.may_push(worker - 1)) candidates_.emplace_back(worker);
  }
  std::ranges::sort(candidates_, [this](Rank left, Rank right) {
    const std::uint32_t of_left = staleness_.left(left.value() - 1);
    const std::uint32_t of_right = staleness_.left(right.value() - 1);
    return of_left > of_right || (of_left == of_right && left < right);
  });
}

void add_pushed(std::span<float> values, std::span<const float> pushed, const Push&) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += pushed[i];
}

ParameterWorker::ParameterWorker(Communicator& communicator, const ServerOptions& options)
    : communicator_(introduced(communicator, options)),
      options_(options),
      values_(options.elements),
      pulled_(options.mode == ServerMode::geo ? options.elements : 0) {
  check(communicator.rank() != kServer, ErrorCode::invalid_argument,
        "rank 0 is the parameter server and no worker");
}

void ParameterWorker::begin(std::uint32_t pushes) {
  check(left_ == 0, ErrorCode::invalid_argument, kNotOver);
  begin_session(communicator_, pushes, values_);
  left_ = pushes;
  steps_ = 0;
  if (options_.mode == ServerMode::geo) std::ranges::copy(values_, pulled_.begin());
}

void ParameterWorker::push(std::span<const float> gradient) {
  check(options_.mode != ServerMode::geo, ErrorCode::invalid_argument,
        "a worker of mode geo pushes no gradients; it ends local steps");
  check(gradient.size() == values_.size(), ErrorCode::invalid_argument,
        "a gradient has another number of elements than the values");
  push_and_pull(gradient);
}

bool ParameterWorker::end_local_step() {
  check(options_.mode == ServerMode::geo, ErrorCode::invalid_argument,
        "only a worker of mode geo has local steps; this one pushes gradients");
  if (++steps_ < options_.local_steps) return false;
  const auto workers = static_cast<float>(workers_of(communicator_));
  for (std::size_t i = 0; i < values_.size(); ++i) {
    pulled_[i] = (values_[i] - pulled_[i]) / workers;
  }
  push_and_pull(pulled_);
  std::ranges::copy(values_, pulled_.begin());
  steps_ = 0;
  return true;
}

void ParameterWorker::push_and_pull(std::span<const float> pushed) {
  check(left_ > 0, ErrorCode::invalid_argument, "a worker pushes more often than its session says");
  --left_;
  communicator_.send(std::as_bytes(pushed), kServer).wait();
  communicator_.receive(std::as_writable_bytes(std::span{values_}), kServer).wait();
}

}  // namespace spillway::comm
