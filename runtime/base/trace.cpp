#include "runtime/base/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <ostream>

#include "runtime/base/error.hpp"

namespace spillway {
namespace {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

/// The format's unit is the microsecond; three decimals keep the nanosecond.
std::string microseconds(std::chrono::nanoseconds time) {
  const long long ns = time.count();
  const long long magnitude = ns < 0 ? -ns : ns;
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", magnitude / 1000, magnitude % 1000);
}

std::string arguments_json(const TraceArguments& arguments) {
  std::string out;
  const auto add = [&out](std::string_view name, std::uint64_t value) {
    out += fmt::format("{}\"{}\":{}", out.empty() ? "" : ",", name, value);
  };
  if (arguments.block.has_value()) add("block", arguments.block->value());
  if (arguments.tile.has_value()) add("tile", arguments.tile->value());
  if (arguments.bytes.has_value()) add("bytes", arguments.bytes->value());
  if (arguments.plan.has_value()) add("plan", *arguments.plan);
  return "{" + out + "}";
}

std::string metadata_json(std::size_t track, std::string_view name, std::string_view key,
                          std::string_view value) {
  return fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"{}","args":{{"{}":{}}}}})", track, name,
                     key, value);
}

/// The tracks of one lane: the format cannot show ranges of one track that overlap.
class Tracks {
 public:
  /// The first track that is free at `event`'s start.
  std::size_t place(const TraceEvent& event) {
    const auto free = std::ranges::find_if(ends_, [&](auto end) { return end <= event.start; });
    const auto end = event.start + event.duration;
    if (free == ends_.end()) {
      ends_.push_back(end);
      return ends_.size() - 1;
    }
    *free = end;
    return static_cast<std::size_t>(free - ends_.begin());
  }
  [[nodiscard]] std::size_t count() const { return ends_.size(); }

 private:
  std::vector<std::chrono::nanoseconds> ends_;
};

/// Track ids of a lane are consecutive, so that the viewer keeps them together.
constexpr std::size_t kTracksPerLane = 1000;

std::size_t track_id(std::size_t lane, std::size_t track) {
  return (lane + 1) * kTracksPerLane + std::min(track, kTracksPerLane - 1);
}

}  // namespace

Trace::Trace(std::size_t capacity)
    : capacity_(capacity), slots_(std::make_unique<Slot[]>(capacity)) {}

LaneIndex Trace::add_lane(std::string_view name) {
  lanes_.emplace_back(name);
  return LaneIndex{static_cast<std::uint32_t>(lanes_.size() - 1)};
}

void Trace::record(const TraceEvent& event) noexcept {
  SPILLWAY_ASSERT(event.lane.value() < lanes_.size());
  const std::uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= capacity_) return;  // counted by next_
  slots_[index].event = event;
  slots_[index].ready.store(true, std::memory_order_release);
}

std::size_t Trace::recorded() const {
  return std::min<std::uint64_t>(next_.load(std::memory_order_relaxed), capacity_);
}

std::uint64_t Trace::dropped() const { return next_.load(std::memory_order_relaxed) - recorded(); }

void Trace::write_json(std::ostream& out) const {
  std::vector<const TraceEvent*> events;
  for (std::size_t i = 0; i < recorded(); ++i) {
    if (slots_[i].ready.load(std::memory_order_acquire)) events.push_back(&slots_[i].event);
  }
  // A range that contains another comes first, so that it takes the first track.
  std::ranges::stable_sort(events, [](const TraceEvent* a, const TraceEvent* b) {
    return a->start != b->start ? a->start < b->start : a->duration > b->duration;
  });
  std::vector<Tracks> tracks(lanes_.size());
  out << "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped\":" << dropped()
      << "},\"traceEvents\":[";
  std::string_view separator = "\n";
  for (const TraceEvent* event : events) {
    const std::size_t lane = event->lane.value();
    const std::size_t track = tracks[lane].place(*event);
    out << separator
        << fmt::format(
               R"({{"ph":"X","pid":1,"tid":{},"name":{},"cat":{},"ts":{},"dur":{},"args":{}}})",
               track_id(lane, track), json_string(event->name), json_string(event->category),
               microseconds(event->start), microseconds(event->duration),
               arguments_json(event->arguments));
    separator = ",\n";
  }
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    for (std::size_t track = 0; track < std::max<std::size_t>(1, tracks[lane].count()); ++track) {
      const std::size_t id = track_id(lane, track);
      out << separator << metadata_json(id, "thread_name", "name", json_string(lanes_[lane]))
          << ",\n"
          << metadata_json(id, "thread_sort_index", "sort_index", std::to_string(id));
      separator = ",\n";
    }
  }
  out << "\n]}\n";
}

}  // namespace spillway
