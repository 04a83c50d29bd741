#include "runtime/base/trace.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

namespace spillway::trace_test {
namespace {

using std::chrono::nanoseconds;
using Json = nlohmann::json;

Json written(const Trace& trace) {
  std::ostringstream out;
  trace.write_json(out);
  return Json::parse(out.str());
}

std::vector<Json> of_kind(const Json& document, std::string_view kind) {
  std::vector<Json> found;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("ph") == kind) found.push_back(event);
  }
  return found;
}

TraceEvent event(LaneIndex lane, std::string_view name, long long start, long long duration) {
  return {.lane = lane,
          .name = name,
          .category = "test",
          .start = nanoseconds(start),
          .duration = nanoseconds(duration)};
}

TEST(Trace, WritesRangesWithTheirLaneTimesAndArguments) {
  Trace trace(10);
  const LaneIndex gpu = trace.add_lane("gpu");
  const LaneIndex h2d = trace.add_lane("h2d");
  trace.record({.lane = h2d,
                .name = "upload_params",
                .category = "copy",
                .start = nanoseconds(1'234'567),
                .duration = nanoseconds(2'005),
                .arguments = {.block = BlockIndex{3}, .tile = TileIndex{7}, .bytes = 8_MiB}});
  trace.record(event(gpu, "forward", 0, 10));
  const Json document = written(trace);
  const auto ranges = of_kind(document, "X");
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[0].at("name"), "forward");  // by time
  EXPECT_TRUE(ranges[0].at("args").empty());
  EXPECT_EQ(ranges[1].at("name"), "upload_params");
  EXPECT_EQ(ranges[1].at("cat"), "copy");
  EXPECT_DOUBLE_EQ(ranges[1].at("ts"), 1234.567);
  EXPECT_DOUBLE_EQ(ranges[1].at("dur"), 2.005);
  EXPECT_EQ(ranges[1].at("args"), Json({{"block", 3}, {"tile", 7}, {"bytes", 8 << 20}}));
  EXPECT_NE(ranges[0].at("tid"), ranges[1].at("tid"));
  std::map<int, std::string> names;
  for (const Json& meta : of_kind(document, "M")) {
    if (meta.at("name") == "thread_name") names[meta.at("tid")] = meta.at("args").at("name");
  }
  EXPECT_EQ(names.at(ranges[0].at("tid")), "gpu");
  EXPECT_EQ(names.at(ranges[1].at("tid")), "h2d");
}

TEST(Trace, OverlappingRangesOfALaneGoToTracksOfTheirOwn) {
  Trace trace(10);
  const LaneIndex lane = trace.add_lane("nvme_read");
  trace.record(event(lane, "a", 0, 100));
  trace.record(event(lane, "b", 50, 100));
  trace.record(event(lane, "c", 100, 20));  // where a was
  trace.record(event(lane, "d", 120, 10));
  const Json document = written(trace);
  std::map<std::string, int> track;
  for (const Json& range : of_kind(document, "X")) track[range.at("name")] = range.at("tid");
  EXPECT_NE(track["a"], track["b"]);
  EXPECT_EQ(track["a"], track["c"]);
  EXPECT_EQ(track["a"], track["d"]);
  int named = 0;
  for (const Json& meta : of_kind(document, "M")) {
    if (meta.at("name") == "thread_name" && meta.at("args").at("name") == "nvme_read") ++named;
  }
  EXPECT_EQ(named, 2);
}

TEST(Trace, ARangeThatContainsOthersTakesTheFirstTrack) {
  Trace trace(10);
  const LaneIndex lane = trace.add_lane("cpu");
  trace.record(event(lane, "short", 7, 10));
  trace.record(event(lane, "long", 7, 50));
  trace.record(event(lane, "middle", 7, 20));
  std::map<std::string, int> track;
  for (const Json& range : of_kind(written(trace), "X")) track[range.at("name")] = range.at("tid");
  EXPECT_LT(track.at("long"), track.at("middle"));
  EXPECT_LT(track.at("middle"), track.at("short"));
}

TEST(Trace, DropsAndCountsWhatDoesNotFit) {
  Trace trace(3);
  const LaneIndex lane = trace.add_lane("cpu");
  for (int i = 0; i < 10; ++i) trace.record(event(lane, "op", i, 1));
  EXPECT_EQ(trace.recorded(), 3U);
  EXPECT_EQ(trace.dropped(), 7U);
  const Json document = written(trace);
  EXPECT_EQ(of_kind(document, "X").size(), 3U);
  EXPECT_EQ(document.at("otherData").at("dropped"), 7);
}

TEST(Trace, EscapesNames) {
  Trace trace(1);
  const LaneIndex lane = trace.add_lane("a \"quoted\\ lane\n");
  trace.record(event(lane, "tab\there", 0, 1));
  const Json document = written(trace);
  EXPECT_EQ(of_kind(document, "X")[0].at("name"), "tab\there");
  EXPECT_EQ(of_kind(document, "M")[0].at("args").at("name"), "a \"quoted\\ lane\n");
}

TEST(Trace, AnEmptyOneIsStillADocument) {
  const Trace trace(0);
  EXPECT_TRUE(written(trace).at("traceEvents").empty());
}

TEST(Trace, ManyThreadsRecordEveryEventOnceWhileAnotherWrites) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  Trace trace(kThreads * kEach);
  std::vector<LaneIndex> lanes;
  for (int i = 0; i < kThreads; ++i) lanes.push_back(trace.add_lane("lane " + std::to_string(i)));
  std::vector<std::thread> threads;
  for (const LaneIndex lane : lanes) {
    threads.emplace_back([&trace, lane] {
      for (int i = 0; i < kEach; ++i) trace.record(event(lane, "op", 10 * i, 5));
    });
  }
  EXPECT_NO_THROW(written(trace));  // what is there is whole
  for (std::thread& thread : threads) thread.join();
  std::set<std::pair<int, double>> seen;
  for (const Json& range : of_kind(written(trace), "X")) {
    EXPECT_TRUE(seen.emplace(range.at("tid"), range.at("ts")).second);
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(trace.dropped(), 0U);
}

TEST(TraceRange, RecordsTheTimeItLived) {
  Trace trace(2);
  const LaneIndex lane = trace.add_lane("cpu");
  {
    const TraceRange range(&trace, lane, "update", "cpu", {.tile = TileIndex{1}});
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(trace.recorded(), 0U);
  }
  const auto ranges = of_kind(written(trace), "X");
  ASSERT_EQ(ranges.size(), 1U);
  EXPECT_GE(ranges[0].at("dur").get<double>(), 5000.0);
  EXPECT_EQ(ranges[0].at("args").at("tile"), 1);
}

TEST(TraceRange, WithoutATraceDoesNothing) {
  const TraceRange range(nullptr, LaneIndex{12345}, "update", "cpu");
}

TEST(TraceDeathTest, ALaneThatWasNeverAddedIsABrokenInvariant) {
  Trace trace(1);
  EXPECT_DEATH(trace.record(event(LaneIndex{0}, "op", 0, 1)), "broken invariant");
}

}  // namespace
}  // namespace spillway::trace_test
