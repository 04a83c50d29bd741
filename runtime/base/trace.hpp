// Trace: named ranges of time on named lanes, recorded without locks or allocation and written as
// Chrome/Perfetto JSON (chrome://tracing, ui.perfetto.dev). A run and a simulation write the same
// form, so that prediction and measurement are compared op by op.
//
// Threads: lanes are added at start; any thread records; writing may run beside recording.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/units.hpp"

namespace spillway {

using LaneIndex = Strong<struct LaneIndexTag, std::uint32_t>;

/// What a range was about; absent parts are not written.
struct TraceArguments {
  std::optional<BlockIndex> block = std::nullopt;
  std::optional<TileIndex> tile = std::nullopt;
  std::optional<Bytes> bytes = std::nullopt;
  std::optional<std::uint64_t> plan = std::nullopt;  ///< which of the plans that were recorded
};

/// A range of time. `name` and `category` must outlive the trace: string literals, or names that
/// its owner keeps.
struct TraceEvent {
  LaneIndex lane;
  std::string_view name;
  std::string_view category;
  std::chrono::nanoseconds start;  ///< since the trace's start
  std::chrono::nanoseconds duration;
  TraceArguments arguments = {};
};

class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes room for `capacity` events at once. Later ones are dropped and counted.
  explicit Trace(std::size_t capacity);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Adds a track of the picture, behind the others. Not while others record.
  [[nodiscard]] LaneIndex add_lane(std::string_view name);

  void record(const TraceEvent& event) noexcept;

  /// Time since the trace's start.
  [[nodiscard]] std::chrono::nanoseconds now() const { return Clock::now() - start_; }
  [[nodiscard]] std::size_t recorded() const;
  [[nodiscard]] std::uint64_t dropped() const;

  /// Writes every event recorded so far. Ranges of one lane that overlap go to further tracks of
  /// its name.
  void write_json(std::ostream& out) const;

 private:
  struct Slot {
    TraceEvent event{};
    std::atomic<bool> ready{false};  ///< set once `event` is whole
  };

  const std::size_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<std::uint64_t> next_{0};
  std::vector<std::string> lanes_;
  const Clock::time_point start_ = Clock::now();
};

/// Records from its construction to its end. With no trace it does nothing, not even read the
/// clock.
class TraceRange {
 public:
  TraceRange(Trace* trace, LaneIndex lane, std::string_view name, std::string_view category,
             TraceArguments arguments = {}) noexcept
      : trace_(trace) {
    if (trace_ == nullptr) return;
    event_ = {.lane = lane,
              .name = name,
              .category = category,
              .start = trace_->now(),
              .duration = {},
              .arguments = arguments};
  }
  ~TraceRange() {
    if (trace_ == nullptr) return;
    event_.duration = trace_->now() - event_.start;
    trace_->record(event_);
  }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  Trace* trace_;
  TraceEvent event_{};
};

}  // namespace spillway
