#include "comm/detail/transfers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// After so long a wait looks whether it has been stopped.
constexpr std::chrono::milliseconds kGlance{20};
/// A wait that is longer is always told.
constexpr std::chrono::seconds kLongestSilence{60};

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
  const Clock::time_point begin = Clock::now();
  next_word_ = begin + silence_;
  while (const std::optional<Rank> late = transport_.wait(count, std::min(kGlance, timeout_))) {
    check_going_on();
    if (is_over(begin)) return late;
    tell_waiting(begin, &*late);
  }
  note_wait(begin);
  return std::nullopt;
}

std::optional<Rank> Transfers::wait_for_any(std::span<const Rank> from) {
  const Clock::time_point begin = Clock::now();
  next_word_ = begin + silence_;
  while (true) {
    const std::optional<Rank> first = transport_.wait_for_any(from, std::min(kGlance, timeout_));
    if (first.has_value()) {
      note_wait(begin);
      return first;
    }
    check_going_on();
    if (is_over(begin)) return std::nullopt;
    tell_waiting(begin, nullptr);
  }
}

// A rank may wait for one that waits for a third: it counts whoever has said it.
bool Transfers::is_over(Clock::time_point begin) const {
  return Clock::now() >= std::max(begin, transport_.heard_at_work()) + timeout_;
}

void Transfers::tell_waiting(Clock::time_point begin, const Rank* whom) {
  const Clock::time_point now = Clock::now();
  if (now < next_word_) return;
  const auto seconds = [](Clock::duration time) {
    return std::chrono::floor<std::chrono::seconds>(time).count();
  };
  log_warning("rank {} has waited {} s for {}, and gives up after {} s", rank().value(),
              seconds(now - begin),
              whom == nullptr ? "other ranks" : fmt::format("rank {}", whom->value()),
              seconds(timeout_));
  next_word_ = now + (now - begin);
}

void Transfers::note_wait(Clock::time_point begin) {
  silence_ = std::clamp<Clock::duration>(2 * (Clock::now() - begin), silence_, kLongestSilence);
}

void Transfers::check_going_on() const {
  check(!stopped_.load(std::memory_order_relaxed), ErrorCode::device_error,
        "this rank has abandoned the group");
}

}  // namespace spillway::comm::detail
