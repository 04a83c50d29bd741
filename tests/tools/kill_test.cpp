// kill -9 of a run that trains: whatever was committed goes on as if nothing had happened.
#include <chrono>
#include <random>
#include <thread>

#include "tests/support/environment.hpp"
#include "tests/tools/cli_fixture.hpp"

namespace spillway::testing::kill_test {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

double seconds_since(steady_clock::time_point start) {
  return duration<double>(steady_clock::now() - start).count();
}

class Kill : public Cli {
 protected:
  void kill(const Program& program) {
    program.signal(SIGKILL);
    const Answer answer = program.wait();
    ASSERT_EQ(answer.exit_code, -1) << "it ended before it was killed: " << answer.err;
  }
  /// The same losses at every step, and the same weights.
  void expect_equal(const std::string& a, const std::string& b) {
    EXPECT_EQ(metrics(a), metrics(b));
    ASSERT_EQ(run({"export", path(a), path("weights_" + a)}).exit_code, 0);
    ASSERT_EQ(run({"export", path(b), path("weights_" + b)}).exit_code, 0);
    EXPECT_EQ(read_all(directory_ / ("weights_" + a) / "model.safetensors"),
              read_all(directory_ / ("weights_" + b) / "model.safetensors"));
  }
};

TEST_F(Kill, ResumesAtEveryStageOfTheRunAsIfNothingHadHappened) {
  constexpr int kSteps = 40;
  ASSERT_EQ(run(train("whole", kSteps, {"--nvme", drive("disk_a")})).exit_code, 0);
  const auto arguments = train("killed", kSteps, {"--nvme", drive("disk_b"), "--resume"});
  for (const std::size_t lines : {3U, 11U, 19U, 30U}) {
    const Program program(directory_, arguments);
    ASSERT_TRUE(wait_for_lines(directory_ / "killed/metrics.jsonl", lines))
        << read_all(program.err());
    kill(program);
  }
  const Answer last = run(arguments);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  expect_equal("killed", "whole");
}

// SPILLWAY_TEST_KILLS: how many. Half of them fall into the start, with its planning, recovery and
// first step, half after some of the steps that follow: fewer than a kill's share of all, so that
// there is a run left to kill, however the machine's speed changes.
TEST_F(Kill, AtRandomInstantsChangesNothing) {
  constexpr std::size_t kStepsPerKill = 30;
  const std::size_t kills = test_support::count_from("SPILLWAY_TEST_KILLS", 12);
  std::mt19937_64 random(test_support::test_seed());
  const int steps = static_cast<int>(kStepsPerKill * kills);

  const auto begin = steady_clock::now();
  const Program whole(directory_, train("whole", steps, {"--nvme", drive("disk_a")}));
  ASSERT_TRUE(wait_for_lines(directory_ / "whole/metrics.jsonl", 1)) << read_all(whole.err());
  const double start = seconds_since(begin);
  ASSERT_EQ(whole.wait().exit_code, 0);
  const double step = (seconds_since(begin) - start) / steps;

  const auto arguments = train("killed", steps, {"--nvme", drive("disk_b"), "--resume"});
  const std::string metrics_file = directory_ / "killed/metrics.jsonl";
  for (std::size_t k = 0; k < kills; ++k) {
    const std::size_t before = lines_of(metrics_file);
    const Program program(directory_, arguments);
    if (k % 2 == 0) {
      const duration<double> delay(std::uniform_real_distribution<>(0, start)(random));
      wait_for_lines(metrics_file, before + 1, delay);
    } else {
      const std::size_t lines =
          std::uniform_int_distribution<std::size_t>(1, kStepsPerKill)(random);
      ASSERT_TRUE(wait_for_lines(metrics_file, before + lines)) << read_all(program.err());
      const duration<double> delay(std::uniform_real_distribution<>(0, step)(random));
      std::this_thread::sleep_for(delay);
    }
    kill(program);
  }
  const Answer last = run(arguments);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  expect_equal("killed", "whole");
}

}  // namespace
}  // namespace spillway::testing::kill_test
