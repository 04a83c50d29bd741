#include "comm/detail/transfers.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// After so long a wait looks whether it has been stopped.
constexpr std::chrono::milliseconds kGlance{20};

}  // namespace

void Transfers::send(Rank to, Source data) {
  if (data.empty()) return;
  transport_.send(to, data);
  ++started_;
}

void Transfers::receive(Rank from, Target data) {
  if (data.empty()) return;
  transport_.receive(from, data);
  ++started_;
}

std::optional<Rank> Transfers::wait(std::uint64_t count) {
  const Clock::time_point end = Clock::now() + timeout_;
  while (const std::optional<Rank> late = transport_.wait(count, std::min(kGlance, timeout_))) {
    check_going_on();
    if (Clock::now() >= end) return late;
  }
  return std::nullopt;
}

std::optional<Rank> Transfers::wait_for_any(std::span<const Rank> from) {
  const Clock::time_point end = Clock::now() + timeout_;
  while (true) {
    const std::optional<Rank> first = transport_.wait_for_any(from, std::min(kGlance, timeout_));
    if (first.has_value()) return first;
    check_going_on();
    if (Clock::now() >= end) return std::nullopt;
  }
}

void Transfers::check_going_on() const {
  check(!stopped_.load(std::memory_order_relaxed), ErrorCode::device_error,
        "this rank has abandoned the group");
}

}  // namespace spillway::comm::detail
