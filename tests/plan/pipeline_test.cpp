// Pipelines: their order against the published figures, their bubble and what they keep against the
// published formulas, and their messages in an executor in which a send waits for its receive.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/pipeline/timeline.hpp"
#include "tests/plan/pipeline_helpers.hpp"

namespace spillway::plan::pipeline_test {
namespace {

using testing::HasSubstr;

std::vector<Pipeline> pipelines() {
  std::vector<Pipeline> all;
  for (const std::uint32_t stages : {1U, 2U, 3U, 4U, 8U}) {
    for (const std::uint32_t rounds : {1U, 2U, 3U, 5U, 8U, 13U}) {
      for (const auto schedule :
           {PipelineSchedule::naive, PipelineSchedule::f_then_b, PipelineSchedule::one_f_one_b}) {
        all.push_back({schedule, stages, rounds, 1});
      }
      for (const std::uint32_t chunks : {2U, 3U}) {
        all.push_back({PipelineSchedule::interleaved, stages, rounds * stages, chunks});
      }
    }
  }
  return all;
}

std::string name(const Pipeline& p) {
  return fmt::format("{} of {} stages, {} rounds, {} chunks", name_of(p.schedule), p.stages,
                     p.rounds, p.chunks);
}

Timeline even_timeline(const Pipeline& p) { return timeline_of(p, passes_of(p), even(p), 0); }

// Narayanan et al. 2021, figure 4: four stages, eight micro-batches.
TEST(Pipeline, OneFOneBIsThatOfThePaper) {
  const auto passes = passes_of({PipelineSchedule::one_f_one_b, 4, 8, 1});
  EXPECT_EQ(drawn(passes[0]), "1 2 3 4 (1) 5 (2) 6 (3) 7 (4) 8 (5) (6) (7) (8) ");
  EXPECT_EQ(drawn(passes[1]), "1 2 3 (1) 4 (2) 5 (3) 6 (4) 7 (5) 8 (6) (7) (8) ");
  EXPECT_EQ(drawn(passes[2]), "1 2 (1) 3 (2) 4 (3) 5 (4) 6 (5) 7 (6) 8 (7) (8) ");
  EXPECT_EQ(drawn(passes[3]), "1 (1) 2 (2) 3 (3) 4 (4) 5 (5) 6 (6) 7 (7) 8 (8) ");
}

// The same figure, below: two chunks in a stage.
TEST(Pipeline, InterleavedIsThatOfThePaper) {
  const auto passes = passes_of({PipelineSchedule::interleaved, 4, 8, 2});
  EXPECT_THAT(drawn(passes[0]),
              HasSubstr("1 2 3 4 1' 2' 3' 4' 5 6 7 (1') 8 (2') 5' (3') 6' (4') 7' (1) 8' (2) "));
  EXPECT_THAT(drawn(passes[3]), HasSubstr("1 2 3 4 1' (1') 2' (2') 3' (3') 4' (4') 5 (1) 6 (2) "));
}

TEST(Pipeline, EveryPassRunsOnceAndRoundsGoBackwardInOrder) {
  for (const Pipeline& p : pipelines()) {
    SCOPED_TRACE(name(p));
    for (const std::vector<Pass>& stage : passes_of(p)) {
      ASSERT_EQ(stage.size(), std::size_t{2} * p.rounds * p.chunks);
      std::set<std::string> seen;
      std::vector<std::uint32_t> next(p.chunks);
      for (const Pass& pass : stage) {
        EXPECT_TRUE(seen.insert(drawn({pass})).second);
        EXPECT_LT(pass.chunk, p.chunks);
        if (pass.direction == Direction::forward) continue;
        EXPECT_EQ(pass.round, next[pass.chunk]++);
      }
    }
  }
}

/// Returns the published share of a pipeline's bubble (Narayanan et al. 2021, sections 2.2.1 and
/// 2.2.2). Naive: one of the stages runs at a time.
double published_bubble(const Pipeline& p) {
  if (p.schedule == PipelineSchedule::naive) return p.stages - 1;
  return (p.stages - 1.0) / (static_cast<double>(p.chunks) * p.rounds);
}

TEST(Pipeline, HasTheBubbleOfThePublishedFormulas) {
  for (const Pipeline& p : pipelines()) {
    EXPECT_NEAR(bubble_of(even_timeline(p)), published_bubble(p), 1e-9) << name(p);
  }
}

/// Returns how many activations the first stage keeps, of all chunks, by the same paper.
std::uint32_t published_activations(const Pipeline& p) {
  const std::uint32_t all = p.rounds * p.chunks;
  switch (p.schedule) {
    case PipelineSchedule::naive: return 1;
    case PipelineSchedule::f_then_b: return p.rounds;
    case PipelineSchedule::one_f_one_b: return std::min(p.rounds, p.stages);
    case PipelineSchedule::interleaved:
      return std::min(all, (p.stages - 1) * 2 + (p.chunks - 1) * p.stages + 1);
    case PipelineSchedule::pipedream:
    case PipelineSchedule::pipedream_2bw: break;  // stale_test.cpp
  }
  return 0;
}

TEST(Pipeline, KeepsTheActivationsOfThePublishedFormulas) {
  for (const Pipeline& p : pipelines()) {
    EXPECT_EQ(most_in_flight(passes_of(p))[0], published_activations(p)) << name(p);
  }
}

TEST(Pipeline, MessagesNeverWaitForThemselves) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uneven(0.1, 3);
  for (const Pipeline& p : pipelines()) {
    SCOPED_TRACE(name(p));
    const auto passes = passes_of(p);
    EXPECT_TRUE(ends(p, entries_of(p, passes, even_timeline(p))));
    std::vector<StageSeconds> seconds = even(p);
    for (StageSeconds& stage : seconds) {
      for (double& s : stage.forward) s = uneven(random);
      for (double& s : stage.backward) s = uneven(random);
    }
    for (const double message : {0.0, 0.5}) {
      EXPECT_TRUE(ends(p, entries_of(p, passes, timeline_of(p, passes, seconds, message))));
    }
  }
}

// What stands in every textbook of 1F1B: a stage that sends before it receives waits for one that
// does the same.
TEST(Pipeline, TheExecutorSeesMessagesThatWaitForThemselves) {
  using Kind = StageEntry::Kind;
  const Pass forward{Direction::forward, 0, 1};
  const Pass backward{Direction::backward, 0, 0};
  const Pipeline p{PipelineSchedule::one_f_one_b, 2, 2, 1};
  EXPECT_FALSE(ends(p, {{{Kind::send, forward, 1}, {Kind::receive, backward, 1}},
                        {{Kind::send, backward, 0}, {Kind::receive, forward, 0}}}));
}

TEST(Pipeline, AStageReceivesBeforeItRunsAndSendsAfter) {
  for (const Pipeline& p : pipelines()) {
    SCOPED_TRACE(name(p));
    const auto passes = passes_of(p);
    const auto steps = entries_of(p, passes, even_timeline(p));
    for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
      std::vector<Pass> received;
      std::vector<Pass> run;
      for (const StageEntry& step : steps[stage]) {
        if (step.kind == StageEntry::Kind::receive) received.push_back(step.pass);
        if (step.kind == StageEntry::Kind::send) {
          EXPECT_NE(std::ranges::find(run, step.pass), run.end());
        }
        if (step.kind != StageEntry::Kind::run) continue;
        run.push_back(step.pass);
        const bool forward = step.pass.direction == Direction::forward;
        const bool first = forward && stage == 0 && step.pass.chunk == 0;
        const bool turn = !forward && stage + 1 == p.stages && step.pass.chunk + 1 == p.chunks;
        if (p.stages > 1 && !first && !turn) {
          EXPECT_NE(std::ranges::find(received, step.pass), received.end());
        }
      }
      EXPECT_EQ(run, passes[stage]);
    }
  }
}

std::string refusal(const Pipeline& p) {
  try {
    (void)passes_of(p);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(Pipeline, RefusesWhatIsNone) {
  EXPECT_THAT(refusal({PipelineSchedule::one_f_one_b, 0, 1, 1}),
              HasSubstr("a pipeline of 0 stages"));
  EXPECT_THAT(refusal({PipelineSchedule::f_then_b, 2, 0, 1}), HasSubstr("0 rounds"));
  EXPECT_THAT(refusal({PipelineSchedule::naive, 2, 4, 2}),
              HasSubstr("schedule naive has one chunk"));
  EXPECT_THAT(refusal({PipelineSchedule::interleaved, 4, 6, 2}),
              HasSubstr("a multiple of 4 rounds, not 6"));
}

TEST(Pipeline, NoticesPassesThatWaitForEachOther) {
  const Pipeline p{PipelineSchedule::one_f_one_b, 1, 1, 1};
  const Pass forward{Direction::forward, 0, 0};
  const Pass backward{Direction::backward, 0, 0};
  EXPECT_THROW((void)timeline_of(p, {{backward, forward}}, even(p), 0), Error);
}

}  // namespace
}  // namespace spillway::plan::pipeline_test
