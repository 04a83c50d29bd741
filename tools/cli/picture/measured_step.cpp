#include "tools/cli/picture/measured_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "tools/cli/picture/step_picture.hpp"

namespace spillway::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// Twenty steps of the longest lists that a plan has.
constexpr Bytes kLongestTrace{std::uint64_t{4} << 30};

struct Event {
  std::string lane;
  Bar bar;
};
struct KindUse {
  double seconds = 0;
  std::uint64_t ops = 0;
};
using Signature = std::map<std::string_view, std::uint64_t>;  // ops by name

/// The ops of one run of a plan.
struct Run {
  std::vector<Event> events;

  [[nodiscard]] double begin() const {
    return std::ranges::min_element(events, {}, [](const Event& e) { return e.bar.start; })
        ->bar.start;
  }
  [[nodiscard]] double end() const {
    return std::ranges::max_element(events, {}, [](const Event& e) { return e.bar.end; })->bar.end;
  }
  [[nodiscard]] double seconds() const { return end() - begin(); }
  [[nodiscard]] Signature signature() const {
    Signature names;
    for (const Event& event : events) ++names[event.bar.name];
    return names;
  }
};

double seconds_in(const json& event, const char* key) { return event.at(key).get<double>() * 1e-6; }

std::map<std::uint64_t, Run> runs_in(const json& document) {
  std::map<std::uint64_t, Run> runs;
  for (const json& event : document.at("traceEvents")) {
    if (event.at("ph") != "X" || !event.at("args").contains("plan")) continue;
    const double start = seconds_in(event, "ts");
    runs[event.at("args").at("plan").get<std::uint64_t>()].events.push_back(
        {.lane = event.at("cat").get<std::string>(),
         .bar = {.name = event.at("name").get_ref<const std::string&>(),
                 .start = start,
                 .end = start + seconds_in(event, "dur")}});
  }
  return runs;
}

/// Returns the runs of the list that most runs were of; of several, the one with most ops. Its
/// first run, which meets what is not warm yet, is left out where there are others.
std::vector<const Run*> steps_among(const std::map<std::uint64_t, Run>& runs) {
  std::map<Signature, std::vector<const Run*>> lists;
  for (const auto& [number, run] : runs) lists[run.signature()].push_back(&run);
  const auto size = [](const auto& list) {
    return std::pair(list.second.size(), list.second.front()->events.size());
  };
  const auto most = std::ranges::max_element(lists, {}, size);
  if (most == lists.end()) return {};
  std::vector<const Run*> steps = most->second;
  if (steps.size() > 1) steps.erase(steps.begin());
  return steps;
}

const Run& median_of(std::vector<const Run*> steps) {
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::ranges::nth_element(steps, middle, {}, [](const Run* run) { return run->seconds(); });
  return **middle;
}

ordered_json lanes_of(const Run& step) {
  const double begin = step.begin();
  std::map<std::string_view, std::vector<Bar>> lanes;
  for (const Event& event : step.events) {
    Bar bar = event.bar;
    bar.start -= begin;
    bar.end -= begin;
    lanes[event.lane].push_back(bar);
  }
  ordered_json document = ordered_json::array();
  for (auto& [lane, bars] : lanes) {
    document.push_back(
        {{"lane", lane}, {"bars", to_json(joined(std::move(bars), step.seconds()))}});
  }
  return document;
}

ordered_json kinds_of(const std::vector<const Run*>& steps) {
  std::map<std::string_view, KindUse> kinds;
  for (const Run* step : steps) {
    for (const Event& event : step->events) {
      KindUse& use = kinds[event.bar.name];
      use.seconds += event.bar.end - event.bar.start;
      ++use.ops;
    }
  }
  ordered_json document = ordered_json::object();
  for (const auto& [name, use] : kinds) {
    document[std::string(name)] = {{"seconds", use.seconds / static_cast<double>(steps.size())},
                                   {"ops", use.ops / steps.size()}};
  }
  return document;
}

}  // namespace

ordered_json measured_step(const std::filesystem::path& trace) {
  const json document =
      parse_json(read_text_file(trace, kLongestTrace), {.origin = trace.native()});
  try {
    const std::map<std::uint64_t, Run> runs = runs_in(document);
    const std::vector<const Run*> steps = steps_among(runs);
    if (steps.empty()) return nullptr;
    const Run& shown = median_of(steps);
    return {{"step_seconds", shown.seconds()},
            {"steps", steps.size()},
            {"lanes", lanes_of(shown)},
            {"kinds", kinds_of(steps)}};
  } catch (const json::exception& error) {
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{} is no trace of a run: {}", trace.native(), error.what()));
  }
}

}  // namespace spillway::cli
