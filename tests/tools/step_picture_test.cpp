// What a picture of a step shows, against steps written by hand.
#include "tools/cli/picture/step_picture.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/error.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tools/cli/picture/measured_step.hpp"
#include "tools/cli/picture/memory_use.hpp"
#include "tools/cli/picture/page.hpp"

namespace spillway::cli::step_picture_test {
namespace {

using nlohmann::ordered_json;
using plan::PoolKind;

constexpr std::uint64_t kLeaf = kLeafParameters;

engine::Planned planned_step() {
  engine::Planned planned;
  planned.workload = plan::small_workload();
  planned.placement = plan::uniform_placement(planned.workload, {});
  planned.budgets = {
      .device = Bytes{1'000'000}, .host = plan::kUncounted, .nvme = plan::kUncounted};
  planned.profile = {
      .gpu_flops = 1e9, .h2d = 1e9, .d2h = 1e9, .update = 1e9, .nvme_read = 1e9, .nvme_write = 1e9};
  return planned;
}

/// A step of ops that each read or write one buffer, and when they run.
struct HandMade {
  plan::StepPlan step;
  plan::Prediction prediction;

  void add(const plan::Buffer& buffer, bool writes, plan::OpTiming timing) {
    plan::Op op;
    op.first_access = static_cast<std::uint32_t>(step.accesses.size());
    op.access_count = 1;
    step.accesses.push_back({.buffer = buffer, .value = {}, .writes = writes});
    step.ops.push_back(op);
    prediction.ops.push_back(timing);
  }
};

ordered_json line_of(const ordered_json& tiers, const std::string& label) {
  for (const ordered_json& tier : tiers) {
    for (const ordered_json& line : tier["lines"]) {
      if (line["label"] == label) return line;
    }
  }
  ADD_FAILURE() << label;
  return {};
}

TEST(MemoryUse, IsWhatSomebodyStillNeeds) {
  const engine::Planned planned = planned_step();
  // Each of the two slots has 3 leaves of fp32. The first holds something from 0 to 2 s, which is
  // read at its end, and from 3 to 4 s, which nobody reads; the second from 1 to 5 s.
  HandMade made;
  const plan::Buffer first{PoolKind::parameter_slots, 0};
  const plan::Buffer second{PoolKind::parameter_slots, 1};
  made.add(first, true, {0, 1});
  made.add(second, true, {1, 1.5});
  made.add(first, false, {1.5, 2});
  made.add(first, true, {3, 4});
  made.add(second, false, {4, 5});
  made.prediction.step_seconds = 6;
  const ordered_json tiers = memory_use(planned, made.step, made.prediction);
  const ordered_json line = line_of(tiers, "parameter slots");
  const std::uint64_t slot = 3 * kLeaf * 4;
  EXPECT_EQ(line["taken"], 2 * slot);
  ASSERT_EQ(line["in_use"].size(), 240U);  // 40 a second
  const auto at = [&](double seconds) {
    return line["in_use"][static_cast<std::size_t>(seconds * 40)].get<std::uint64_t>();
  };
  EXPECT_EQ(at(0.5), slot);
  EXPECT_EQ(at(1.5), 2 * slot);
  EXPECT_EQ(at(2.5), slot);
  EXPECT_EQ(at(3.5), 2 * slot);
  EXPECT_EQ(at(4.5), slot);
  EXPECT_EQ(at(5.5), 0U);
  // What any step may have left is there all the time.
  const ordered_json state = line_of(tiers, "optimizer state");
  EXPECT_EQ(state["in_use"][0], 8 * kLeaf * 12);
  EXPECT_EQ(state["in_use"][239], 8 * kLeaf * 12);
  EXPECT_EQ(tiers[0]["budget"], 1'000'000U);
  EXPECT_TRUE(tiers[1]["budget"].is_null());
}

TEST(MemoryUse, OfAnAccumulatorLastsOverItsAdditions) {
  const engine::Planned planned = planned_step();
  HandMade made;
  const plan::Buffer sum{PoolKind::accumulators, 0};
  made.add(sum, true, {0, 1});
  made.add(sum, false, {2, 3});  // adds: reads and writes
  made.step.accesses.push_back({.buffer = sum, .value = {}, .writes = true});
  ++made.step.ops.back().access_count;
  made.add(sum, false, {4, 5});
  made.prediction.step_seconds = 6;
  const ordered_json line =
      line_of(memory_use(planned, made.step, made.prediction), "gradient accumulators");
  const std::uint64_t bytes = 3 * kLeaf * 4;
  for (const std::size_t sample : {10U, 60U, 100U, 140U, 190U}) {
    EXPECT_EQ(line["in_use"][sample], bytes) << sample;
  }
  EXPECT_EQ(line["in_use"][210], 0U);
}

TEST(Joined, BarsOfOneNameThatNoEyeCouldPart) {
  const std::vector<Bar> bars = joined({{.name = "b", .start = 0.6, .end = 0.7},
                                        {.name = "a", .start = 0, .end = 0.2},
                                        {.name = "a", .start = 0.2001, .end = 0.3},
                                        {.name = "a", .start = 0.35, .end = 0.4},
                                        {.name = "b", .start = 0.4, .end = 0.5}},
                                       1.0);
  EXPECT_EQ(to_json(bars),
            ordered_json(
                {{"a", 0.0, 0.3, 2}, {"a", 0.35, 0.4, 1}, {"b", 0.4, 0.5, 1}, {"b", 0.6, 0.7, 1}}));
}

TEST(StepPicture, HasTheOpsOfTheStep) {
  const engine::Planned planned = planned_step();
  const plan::StepPlan step = plan::build_training_step(planned.workload, planned.placement);
  const ordered_json picture = step_picture(planned, step);
  std::map<std::string, std::uint64_t> by_kind;
  std::map<std::string, std::uint64_t> by_lane;
  for (const plan::Op& op : step.ops) {
    ++by_kind[std::string(plan::name_of(op))];
    ++by_lane[std::string(plan::name_of(op.lane))];
  }
  for (const auto& [kind, ops] : by_kind) EXPECT_EQ(picture["kinds"][kind]["ops"], ops) << kind;
  EXPECT_EQ(picture["kinds"].size(), by_kind.size());
  for (const ordered_json& lane : picture["lanes"]) {
    std::uint64_t ops = 0;
    for (const ordered_json& bar : lane["bars"]) ops += bar[3].get<std::uint64_t>();
    EXPECT_EQ(ops, by_lane[lane["lane"].get<std::string>()]) << lane["lane"];
  }
}

TEST(StepPicture, SaysHowManyTokensHideALane) {
  engine::Planned planned = planned_step();
  planned.profile.gpu_flops = 4e8;
  planned.profile.update = 1e7;  // an update takes longer than a round, a sum of gradients does not
  const plan::StepPlan step = plan::build_training_step(planned.workload, planned.placement);
  const ordered_json picture = step_picture(planned, step);
  const auto tokens_of = [&](const std::string& lane) {
    for (const ordered_json& each : picture["lanes"]) {
      if (each["lane"] == lane) return each["tokens_to_hide"].get<std::uint64_t>();
    }
    return std::uint64_t{0};
  };
  // With that many rounds and no fewer, the CPU's work is no longer than the device's.
  const std::uint64_t a_round = plan::tokens_of_step(planned.workload) / planned.workload.rounds;
  const auto rounds = static_cast<std::uint32_t>((tokens_of("cpu") + a_round - 1) / a_round);
  ASSERT_GT(rounds, planned.workload.rounds + 1);
  const auto excess = [&](std::uint32_t count) {
    plan::Workload workload = planned.workload;
    workload.rounds = count;
    const plan::Prediction prediction =
        plan::simulate(plan::build_training_step(workload, planned.placement), planned.profile);
    return prediction[plan::Lane::cpu].busy - prediction[plan::Lane::gpu].busy;
  };
  EXPECT_LE(excess(rounds), 1e-9);
  EXPECT_GT(excess(rounds - 1), 0);
}

/// The planner has simulated the step already.
TEST(StepPicture, IsTheSameFromThePredictionOfThePlan) {
  engine::Planned planned = planned_step();
  planned.workload.rounds = 2;  // a step of one round tells nothing of the next
  planned.profile.gpu_flops = 4e8;
  planned.profile.update =
      1e7;  // more tokens hide the CPU's lane, which is longer than the device's
  const plan::StepPlan step = plan::build_training_step(planned.workload, planned.placement);
  const ordered_json simulated = step_picture(planned, step);
  const auto is_of_cpu = [](const ordered_json& lane) { return lane["lane"] == "cpu"; };
  const auto cpu = std::ranges::find_if(simulated["lanes"], is_of_cpu);
  ASSERT_GT((*cpu)["tokens_to_hide"], plan::tokens_of_step(planned.workload));
  planned.prediction = plan::simulate(step, planned.profile);
  EXPECT_EQ(step_picture(planned, step), simulated);
}

TEST(StepPicture, SaysWhatTwiceOfAResourceBuys) {
  engine::Planned planned = planned_step();
  planned.profile.gpu_flops = 1e3;  // nothing else takes any time
  const plan::StepPlan step = plan::build_training_step(planned.workload, planned.placement);
  const ordered_json picture = step_picture(planned, step);
  const double seconds = picture["step_seconds"];
  EXPECT_NEAR(picture["doubling"][0]["step_seconds"].get<double>() / seconds, 0.5, 1e-3);
  EXPECT_NEAR(picture["doubling"][1]["step_seconds"].get<double>() / seconds, 1, 1e-3);
}

class MeasuredStep : public ::testing::Test {
 protected:
  /// An event of a trace: times in microseconds, as Chrome's format has them.
  static std::string event(const std::string& name, int plan, double start, double duration) {
    return R"({"ph":"X","pid":1,"tid":1000,"name":")" + name + R"(","cat":"gpu","ts":)" +
           std::to_string(start) + R"(,"dur":)" + std::to_string(duration) + R"(,"args":{"plan":)" +
           std::to_string(plan) + "}}";
  }
  std::filesystem::path written(const std::vector<std::string>& events) {
    const std::filesystem::path path = folder_.path() / "trace.json";
    std::ofstream file(path);
    file << R"({"traceEvents":[)";
    for (std::size_t i = 0; i < events.size(); ++i) file << (i == 0 ? "" : ",") << events[i];
    file << "]}";
    return path;
  }
  test_support::TemporaryDirectory folder_;
};

TEST_F(MeasuredStep, IsTheMedianOfThoseThatAreAlike) {
  std::vector<std::string> events;
  // The first one is left out, the evaluation (plan 3) is not like the others.
  const double durations[] = {9e6, 1e6, 0, 3e6, 2e6};
  for (int plan = 1; plan <= 5; ++plan) {
    if (plan == 3) {
      events.push_back(event("loss", 3, 30e6, 1e6));
      continue;
    }
    events.push_back(event("forward", plan, plan * 10e6, durations[plan - 1] / 2));
    events.push_back(
        event("backward", plan, plan * 10e6 + durations[plan - 1] / 2, durations[plan - 1] / 2));
  }
  const ordered_json measured = measured_step(written(events));
  EXPECT_EQ(measured["steps"], 3);
  EXPECT_NEAR(measured["step_seconds"].get<double>(), 2, 1e-9);
  EXPECT_NEAR(measured["kinds"]["forward"]["seconds"].get<double>(), 1, 1e-9);
  EXPECT_EQ(measured["kinds"]["forward"]["ops"], 1);
  EXPECT_FALSE(measured["kinds"].contains("loss"));
  ASSERT_EQ(measured["lanes"].size(), 1U);
  EXPECT_NEAR(measured["lanes"][0]["bars"][1][1].get<double>(), 1, 1e-9);
}

TEST_F(MeasuredStep, IsNoneWithoutStepsAndRefusedForWhatIsNoTrace) {
  EXPECT_TRUE(measured_step(written({})).is_null());
  // Of a version that did not number its plans.
  EXPECT_TRUE(
      measured_step(written({R"({"ph":"X","name":"a","cat":"gpu","ts":0,"dur":1,"args":{}})"}))
          .is_null());
  for (const char* const damaged : {R"({"ph":"X"})", R"(7)", R"({"ph":"X","name":"a","cat":"gpu",
       "ts":"soon","dur":1,"args":{"plan":1}})"}) {
    EXPECT_THROW(static_cast<void>(measured_step(written({damaged}))), Error) << damaged;
  }
}

TEST(Page, TakesNoTextForAnElement) {
  const std::string page =
      html_page("</title><script>", {{"run", {{"directory", "</script><script>{{TITLE}}"}}}});
  EXPECT_NE(page.find("<title>&lt;/title&gt;&lt;script&gt;</title>"), std::string::npos);
  EXPECT_NE(page.find("\\u003c/script>\\u003cscript>{{TITLE}}"), std::string::npos);
  EXPECT_EQ(page.find("</script><script>"), std::string::npos);
}

}  // namespace
}  // namespace spillway::cli::step_picture_test
