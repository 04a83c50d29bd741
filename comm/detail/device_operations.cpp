#include "comm/detail/device_operations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <thread>

#include "comm/nccl/nccl_link.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;
using State = DeviceLink::Health::State;

/// CUDA's events do not wake: who waits for one asks so often.
constexpr std::chrono::microseconds kPause{50};

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1e3; }

/// Returns "rank 3": whom an operation waits for.
std::string others_of(const Call& call, const Members& members) {
  const std::uint32_t to = members.in_job(call.root).value();
  const std::uint32_t from = members.in_job(call.from).value();
  switch (call.operation) {
    case Operation::send: return fmt::format("rank {}", to);
    case Operation::receive: return fmt::format("rank {}", from);
    case Operation::exchange: return fmt::format("rank {} or rank {}", to, from);
    default: return "another rank";
  }
}

}  // namespace

DeviceOperations::DeviceOperations(Communicator& host, const DeviceCommunicatorOptions& options)
    : options_(options),
      timeout_(options.timeout_ms),
      ring_(std::max<std::size_t>(options.depth, 1)) {
  for (Started& started : ring_) started.theirs.resize(host.ranks());
  groups_.push_back(std::make_unique<DeviceGroup>(Members(host.rank(), host.ranks()), host));
  guarded([&] { join(all()); });
}

DeviceOperations::~DeviceOperations() {
  if (failure_ != nullptr) return;
  if (std::uncaught_exceptions() > exceptions_) {
    end_groups("it has ended with an error of its own");
    return;
  }
  try {
    wait();
  } catch (const std::exception& error) {
    log_error("operations that nobody waited for failed: {}", error.what());
  }
}

template <class Body>
void DeviceOperations::guarded(Body body) {
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  try {
    body();
  } catch (const std::exception& error) {
    failure_ = std::current_exception();
    end_groups(error.what());
    throw;
  }
}

void DeviceOperations::end_groups(std::string_view reason) noexcept {
  all().host.abandon(reason);
  std::vector<DeviceLink*> links;
  for (const auto& group : groups_) {
    if (group->link != nullptr) links.push_back(group->link.get());
  }
  abort_nccl_links(links);
  // These have ended with the group, which has told why.
  for (Started& started : ring_) {
    try {
      started.agreement.wait();
    } catch (const std::exception&) {
      continue;
    }
  }
}

DeviceGroup& DeviceOperations::add_subgroup(const DeviceGroup& of, std::span<const Rank> some) {
  groups_.push_back(
      std::make_unique<DeviceGroup>(of.members.subgroup(some), of.host.subgroup(some)));
  DeviceGroup& group = *groups_.back();
  guarded([&] { join(group); });
  return group;
}

void DeviceOperations::join(DeviceGroup& group) {
  group.link = make_nccl_link(
      group.host,
      {.depth = ring_.size(), .timeout = timeout_, .directories = options_.library_directories});
  const auto end = Clock::now() + timeout_;
  while (group.link->health().state == State::busy) {
    if (Clock::now() > end) {
      group.host.barrier().wait();  // which throws, naming the rank, if one has given up
      throw Error(ErrorCode::device_error,
                  fmt::format("rank {} waited {} s for NCCL to join {} ranks, all of which have "
                              "come; NCCL_DEBUG=INFO in the environment says more",
                              rank().value(), seconds(timeout_), group.host.ranks()));
    }
    std::this_thread::sleep_for(kPause);
  }
  check_health();
  group.host.barrier().wait();
}

void DeviceOperations::start(DeviceGroup& group, const Call& call, void* stream) {
  check(stream != nullptr, ErrorCode::invalid_argument,
        "operations on device memory need a stream; the default stream waits for all others");
  check_call(call, group.members.rank(), group.members.ranks());
  guarded([&] {
    while (started_ - over_ == ring_.size()) {
      advance();
      if (started_ - over_ == ring_.size()) std::this_thread::sleep_for(kPause);
    }
    if (all_over()) progress_ = Clock::now();
    const bool collective = !is_between_two(call.operation);
    const std::size_t slot = slot_of(started_);
    Started& started = ring_[slot];
    started.group = &group;
    started.call = call;
    started.mine = make_record(call, collective ? ++group.collectives : 0, group.members);
    started.agreement = exchange_records(started);
    group.sent.add(call, group.members.rank(), group.members.ranks());
    ++started_;
    group.link->enqueue(call, stream, slot);
    while (group.link->health().state == State::busy) {
      advance();
      std::this_thread::sleep_for(kPause);
    }
    check_health();
    group.link->close(stream, slot);
  });
}

bool DeviceOperations::watch() {
  guarded([&] { advance(); });
  return all_over();
}

void DeviceOperations::wait() {
  while (!watch()) std::this_thread::sleep_for(kPause);
}

Ticket DeviceOperations::exchange_records(Started& started) {
  const Call& call = started.call;
  Communicator& host = started.group->host;
  const std::span mine{&started.mine, 1};
  const std::span theirs = std::span(started.theirs).first(host.ranks());
  if (!is_between_two(call.operation)) {
    return host.all_gather(std::as_bytes(mine), std::as_writable_bytes(theirs));
  }
  // Both ends tell the other, so that each learns of a failure of the other.
  const Rank to = call.operation == Operation::receive ? call.from : call.root;
  const Rank from = call.operation == Operation::send ? call.root : call.from;
  return host.exchange(std::as_bytes(mine), to, std::as_writable_bytes(theirs.first(1)), from);
}

void DeviceOperations::agree(Started& started) const {
  try {
    started.agreement.wait();
  } catch (const Error& error) {
    throw Error(
        error.code(),
        fmt::format("{} on device memory: {}", description(started.mine.header), error.what()),
        error.native());
  }
  const Members& members = started.group->members;
  if (!is_between_two(started.call.operation)) {
    compare(std::span(started.theirs).first(members.ranks()), members);
  } else {
    compare_transfer(started.call, members, started.theirs.front());
  }
}

void DeviceOperations::advance() {
  for (; !all_over(); ++over_) {
    Started& oldest = ring_[slot_of(over_)];
    if (oldest.agreement.pending()) {
      if (!oldest.agreement.ready()) break;
      agree(oldest);
      progress_ = Clock::now();
    }
    if (oldest.group->link->mark(slot_of(over_)) != DeviceLink::Mark::behind) break;
    progress_ = Clock::now();
  }
  check_health();
  // While ranks do not agree, the host's communicator has the limit.
  const bool waits = !all_over() && !ring_[slot_of(over_)].agreement.pending();
  if (waits && Clock::now() - progress_ > timeout_) {
    find_cause(fmt::format("nothing has ended for {} s", seconds(timeout_)));
  }
}

void DeviceOperations::check_health() {
  for (const auto& group : groups_) {
    const DeviceLink::Health health = group->link->health();
    if (health.state == State::failed_elsewhere && !all_over())
      find_cause("NCCL says: " + health.text);
    if (health.state != State::failed && health.state != State::failed_elsewhere) continue;
    const std::string where =
        all_over() ? "after the last operation" : description(ring_[slot_of(over_)].mine.header);
    throw Error(ErrorCode::device_error, fmt::format("NCCL failed on rank {} in {}: {}",
                                                     rank().value(), where, health.text));
  }
}

void DeviceOperations::find_cause(std::string_view symptom) {
  // What other ranks have said in the meantime may tell.
  for (std::uint64_t number = over_; number != started_; ++number) {
    if (ring_[slot_of(number)].agreement.pending()) agree(ring_[slot_of(number)]);
  }
  Started& oldest = ring_[slot_of(over_)];
  const std::string what = fmt::format("rank {} waits in {} on device memory, because {}",
                                       rank().value(), description(oldest.mine.header), symptom);
  if (!is_between_two(oldest.call.operation)) {
    const bool reached = oldest.group->link->mark(slot_of(over_)) == DeviceLink::Mark::within;
    using Kind = DeviceRecord::Kind;
    oldest.mine.kind = reached ? Kind::stuck_within : Kind::stuck_before;
    oldest.agreement = exchange_records(oldest);
    agree(oldest);
  }
  throw Error(ErrorCode::device_error, fmt::format("{}: {} has died, or its device hangs", what,
                                                   others_of(oldest.call, oldest.group->members)));
}

}  // namespace spillway::comm::detail
