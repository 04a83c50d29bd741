// Pipelines that stay full, PipeDream and PipeDream-2BW: their weights against the published
// figures and formulas, and the step plans of PipeDream-2BW by the rules of a plan, one after the
// other.
#include "runtime/plan/pipeline/stale.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "tests/plan/pipeline_helpers.hpp"
#include "tests/plan/stage_plans.hpp"

namespace spillway::plan::stale_test {
namespace {

/// Number of versions of its weights that a stage has at once while it runs passes of several
/// steps: the newest, and those that rounds in flight use.
std::uint32_t versions_kept(const Pipeline& pipeline, std::uint32_t stage,
                            const std::vector<Pass>& passes) {
  const bool each = pipeline.schedule == PipelineSchedule::pipedream;
  const std::uint32_t rounds_of_update = each ? 1 : pipeline.rounds;
  std::uint32_t newest = 0;
  std::uint32_t begun = 0;
  std::uint32_t ended = 0;
  std::size_t most = 1;
  for (const Pass& pass : passes) {
    const bool forward = pass.direction == Direction::forward;
    (forward ? begun : ended) = pass.round + 1;
    if (!forward && ended % rounds_of_update == 0) ++newest;
    std::set<std::uint32_t> versions{newest};
    for (std::uint32_t round = ended; round < begun; ++round) {
      versions.insert(updates_before(pipeline, stage, round));
    }
    most = std::max(most, versions.size());
  }
  return static_cast<std::uint32_t>(most);
}

using testing::HasSubstr;

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::pipedream,
                                           PipelineSchedule::pipedream_2bw};

Pipeline two_buffered(std::uint32_t stages, std::uint32_t rounds) {
  return {PipelineSchedule::pipedream_2bw, stages, rounds, 1};
}

std::vector<Pipeline> pipelines() {
  std::vector<Pipeline> all;
  for (const std::uint32_t stages : {2U, 3U, 4U}) {
    for (const std::uint32_t more : {0U, 1U, 4U, 5U}) {
      all.push_back(two_buffered(stages, stages + more));
    }
  }
  return all;
}

/// Returns those whose lists a run has: PipeDream's steps have a round each.
std::vector<Pipeline> listed() {
  std::vector<Pipeline> all = pipelines();
  for (const std::uint32_t stages : {2U, 3U, 4U}) {
    all.push_back({PipelineSchedule::pipedream, stages, 1, 1});
  }
  return all;
}

std::string name(const Pipeline& p) {
  return fmt::format("{} of {} stages, {} rounds", name_of(p.schedule), p.stages, p.rounds);
}

// Narayanan et al. 2021 (PipeDream-2BW), figure 2: four workers, an update after four inputs. The
// weights with the gradients of inputs 1 to 4 are first used by the forward pass of input 9.
TEST(StalePipelines, TwoBufferedWeightsAreThoseOfThePaper) {
  const Pipeline p = two_buffered(4, 4);
  const auto passes = passes_of_steps(p, 3);
  EXPECT_THAT(drawn(passes[0]), HasSubstr("1 2 3 4 (1) 5 (2) 6 (3) 7 (4) 8 (5) 9 (6) 10 "));
  EXPECT_THAT(drawn(passes[3]), HasSubstr("1 (1) 2 (2) 3 (3) 4 (4) 5 (5) 6 (6) "));
  for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
    for (const std::uint32_t input : {1U, 4U, 5U, 8U}) {
      EXPECT_EQ(updates_before(p, stage, input - 1), 0);
    }
    for (const std::uint32_t input : {9U, 12U}) EXPECT_EQ(updates_before(p, stage, input - 1), 1);
  }
}

// Narayanan et al. 2019 (PipeDream), section 3.3 on figure 4: input 5 has the update of input 1 on
// the first of four workers, and those of inputs 1 and 2 on the second. In general, the gradient of
// step t on worker i of n is that on its weights of n - i steps before.
TEST(StalePipelines, WeightStashingIsThatOfThePaper) {
  const Pipeline p{PipelineSchedule::pipedream, 4, 1, 1};
  EXPECT_EQ(updates_before(p, 0, 4), 1);
  EXPECT_EQ(updates_before(p, 1, 4), 2);
  for (std::uint32_t worker = 1; worker <= p.stages; ++worker) {
    for (std::uint32_t t = p.stages; t < 20; ++t) {
      EXPECT_EQ(updates_before(p, worker - 1, t), t - p.stages + worker);
    }
  }
}

/// Returns the weights that each round meets on its way forward, told by running the passes: a
/// stage updates when it has run backward of the last round of an update.
std::vector<std::uint32_t> newest_at_forward(const std::vector<Pass>& passes,
                                             std::uint32_t rounds) {
  std::vector<std::uint32_t> met;
  std::uint32_t updates = 0;
  for (const Pass& pass : passes) {
    if (pass.direction == Direction::forward) met.push_back(updates);
    if (pass.direction == Direction::backward && (pass.round + 1) % rounds == 0) ++updates;
  }
  return met;
}

// PipeDream uses the newest weights that are there; 2BW never newer ones, and the same on all
// stages.
TEST(StalePipelines, NoPassUsesWeightsThatAreNotThereYet) {
  for (const Pipeline& p : pipelines()) {
    const Pipeline each{PipelineSchedule::pipedream, p.stages, p.rounds, 1};
    for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
      const auto of_each = newest_at_forward(passes_of_steps(each, 4)[stage], 1);
      const auto of_steps = newest_at_forward(passes_of_steps(p, 4)[stage], p.rounds);
      for (std::uint32_t round = 0; round < of_steps.size(); ++round) {
        EXPECT_EQ(updates_before(each, stage, round), of_each[round]) << name(p);
        EXPECT_LE(updates_before(p, stage, round), of_steps[round]) << name(p);
      }
    }
  }
}

// 2019, section 3.3: a worker keeps the weights of as many inputs as are in flight there; at most
// as many as there are workers. 2021, section 3.1: two, whatever the depth.
TEST(StalePipelines, KeepTheWeightsOfThePublishedFormulas) {
  for (const Pipeline& p : pipelines()) {
    for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
      const Pipeline each{PipelineSchedule::pipedream, p.stages, p.rounds, 1};
      EXPECT_EQ(versions_kept(each, stage, passes_of_steps(each, 4)[stage]), p.stages - stage);
      EXPECT_EQ(versions_kept(p, stage, passes_of_steps(p, 4)[stage]), 2) << name(p);
    }
  }
}

// The same sections: activations of as many inputs as there are workers, on the first of them.
TEST(StalePipelines, KeepTheActivationsOfThePublishedFormulas) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (Pipeline p : pipelines()) {
      p.schedule = schedule;
      const std::vector<std::uint32_t> most = most_in_flight(passes_of_steps(p, 3));
      for (std::uint32_t s = 0; s < p.stages; ++s) EXPECT_EQ(most[s], p.stages - s) << name(p);
    }
  }
}

// The same sections: in the steady state no worker ever waits.
TEST(StalePipelines, HaveNoBubbleBetweenSteps) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (Pipeline p : pipelines()) {
      p.schedule = schedule;
      const auto seconds_of_steps = [&](std::uint32_t steps) {
        return seconds_of(timeline_of(p, passes_of_steps(p, steps), even(p), 0));
      };
      // A round takes one second forward and two backward.
      EXPECT_NEAR(seconds_of_steps(6) - seconds_of_steps(5), 3.0 * p.rounds, 1e-9) << name(p);
    }
  }
}

TEST(StalePipelines, RefuseWhatIsNone) {
  EXPECT_THROW((void)passes_of(two_buffered(4, 3)), Error);
  EXPECT_THROW((void)passes_of_steps({PipelineSchedule::one_f_one_b, 4, 4, 1}, 2), Error);
  const auto stage_of = [](const Workload& model, const Pipeline& p) {
    return workload_of_stage(model, p, 0);
  };
  Workload replicas = model_of(4);
  replicas.replicas = {.count = 2, .sharding = Sharding::state};
  EXPECT_THROW((void)stage_of(replicas, two_buffered(2, 2)), Error);
  EXPECT_THROW((void)stage_of(model_of(4), {PipelineSchedule::pipedream, 2, 2, 1}), Error);
  EXPECT_NO_THROW((void)stage_of(model_of(4), {PipelineSchedule::pipedream, 2, 1, 1}));
  EXPECT_NO_THROW((void)stage_of(model_of(4), two_buffered(2, 2)));
}

TEST(StalePipelines, RoundsInFlightHavePlacesOfTheirOwn) {
  for (const std::uint32_t in_flight : {1U, 2U, 3U, 4U, 7U}) {
    for (std::uint32_t rounds = in_flight; rounds < 30; ++rounds) {
      const std::vector<std::uint32_t> places = places_of_rounds(rounds, in_flight);
      ASSERT_EQ(places.size(), rounds);
      for (std::uint32_t round = 0; round < rounds; ++round) {
        for (std::uint32_t later = 1; later < in_flight; ++later) {
          EXPECT_NE(places[round], places[(round + later) % rounds]) << rounds << " " << in_flight;
        }
      }
      const std::uint32_t count = *std::ranges::max_element(places) + 1;
      EXPECT_LE(count, rounds % in_flight == 0 ? in_flight : 2 * in_flight - 1);
    }
  }
}

TEST(StalePipelines, MessagesNeverWaitForThemselves) {
  for (const Pipeline& p : listed()) {
    std::vector<StageSeconds> uneven = even(p);
    for (std::uint32_t s = 0; s < p.stages; ++s) uneven[s].forward[0] += 0.3 * (s * 7 % 3);
    for (const auto& seconds : {even(p), uneven}) {
      const FullPipeline full = full_pipeline(p, seconds);
      EXPECT_TRUE(ends(p, full.fill)) << name(p);
      EXPECT_TRUE(ends(p, full.entries)) << name(p);
    }
  }
}

TEST(StalePipelines, KeepEveryRuleOfAPlan) {
  const BlockCut cuts[] = {
      {}, kResident, {.state = Tier::nvme}, {.parameters = Tier::device, .saved = Tier::host}};
  for (const Pipeline& p : listed()) {
    for (std::size_t i = 0; i < 2 * std::size(cuts); ++i) {
      const BlockCut& cut = cuts[i / 2];
      for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
        SCOPED_TRACE(fmt::format("{}, stage {}", name(p), stage));
        const Head head = i % 2 == 0 ? Head::own : Head::tied;
        Workload w = workload_of_stage(model_of(8, head), p, stage);
        Placement placement = uniform_placement(w, cut);
        placement.saved_slots = 2;
        std::vector lists{build_fill(w, placement)};
        EXPECT_EQ(find_race(lists[0]), "");
        EXPECT_EQ(find_wrong_content(lists[0]), "");
        EXPECT_EQ(find_wrong_meaning(lists[0], {w, placement, true}), "");
        for (std::uint32_t step = 0; step < 9; ++step) {
          const WhichList which{.phase = step % w.stale.phases};
          if (step < 3) expect_correct({w, placement}, which);
          lists.push_back(step % 2 == 0 ? build_training_step(w, placement, which)
                                        : build_recorded_step(w, placement, which));
        }
        EXPECT_EQ(find_lost_round(lists, p.rounds), "");
        // What the check would say of lists that do not follow each other.
        EXPECT_NE(find_lost_round(lists, p.rounds + 1), "");
        std::swap(lists[0], lists[1]);
        EXPECT_NE(find_lost_round(lists, p.rounds), "");
      }
    }
  }
}

/// What a pass is.
using Identity = std::tuple<OpKind, std::uint32_t, std::uint32_t, std::uint32_t>;

void count_passes(const StepPlan& plan, std::uint32_t rounds, std::map<Identity, int>& passes) {
  for (const Op& op : plan.ops) {
    if (is_model_op(op)) ++passes[{op.kind, op.block, op.round % rounds, op.micro_batch}];
  }
}

TEST(StalePipelines, RunTogetherWhatOneRankRuns) {
  for (const Pipeline& p : listed()) {
    Workload model = model_of(8);
    model.rounds = p.rounds;
    std::map<Identity, int> together, alone;
    for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
      const Workload w = workload_of_stage(model, p, stage);
      count_passes(build_training_step(w, uniform_placement(w, kResident)), p.rounds, together);
    }
    count_passes(build_training_step(model, uniform_placement(model, kResident)), p.rounds, alone);
    EXPECT_EQ(together, alone) << name(p);
  }
}

/// What two stages pass between them, in order: who sends, and what.
using Message = std::pair<std::uint32_t, Value>;

TEST(StalePipelines, SendWhatTheOthersReceiveInTheSameOrder) {
  for (const Pipeline& p : listed()) {
    for (const auto build : {build_fill, build_training_step}) {
      std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Message>> seen;
      for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
        const Workload w =
            workload_of_stage(model_of(8, p.rounds > 1 ? Head::tied : Head::own), p, stage);
        const StepPlan plan = build(w, uniform_placement(w, kResident), WhichList{});
        for (const Op& op : plan.ops) {
          if (op.kind != OpKind::send && op.kind != OpKind::receive) continue;
          const std::uint32_t sender = op.kind == OpKind::send ? stage : op.peer;
          seen[{stage, op.peer}].emplace_back(sender, plan.accesses_of(op)[0].value);
        }
      }
      EXPECT_FALSE(seen.empty());
      for (const auto& [pair, messages] : seen) {
        EXPECT_EQ(messages, (seen[{pair.second, pair.first}])) << name(p);
      }
    }
  }
}

// A stage holds the parameters twice, and nothing else twice.
TEST(StalePipelines, HoldTwoVersionsOfTheWeights) {
  for (const BlockCut& cut : {BlockCut{}, kResident}) {
    const Workload w = workload_of_stage(model_of(8), two_buffered(2, 4), 0);
    const Workload flushed =
        workload_of_stage(model_of(8), {PipelineSchedule::one_f_one_b, 2, 4, 1}, 0);
    const auto bytes = [&](const Workload& of, PoolKind pool) {
      return make_pools(of, uniform_placement(of, cut))[static_cast<std::size_t>(pool)].bytes();
    };
    const bool resident = cut.resident();
    EXPECT_EQ(bytes(w, PoolKind::stashed_parameters), bytes(w, PoolKind::resident_parameters));
    EXPECT_EQ(bytes(w, PoolKind::host_stash),
              resident ? Bytes{} : bytes(w, PoolKind::host_parameters));
    for (std::size_t p = 0; p < kPoolCount; ++p) {
      const auto pool = static_cast<PoolKind>(p);
      if (pool == PoolKind::stashed_parameters || pool == PoolKind::host_stash) {
        EXPECT_EQ(bytes(flushed, pool), Bytes{});
      } else if (pool != PoolKind::host_tokens) {
        EXPECT_EQ(bytes(w, pool), bytes(flushed, pool)) << name_of(pool);
      }
    }
  }
}

// PipeDream: as many as rounds are in flight, as in the paper's formula above.
TEST(StalePipelines, HoldAVersionOfTheWeightsForEachRoundInFlight) {
  for (const Pipeline& p : listed()) {
    for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
      const Workload w = workload_of_stage(model_of(8), p, stage);
      const Pools pools = make_pools(w, uniform_placement(w, kResident));
      const auto bytes = [&](PoolKind pool) {
        return pools[static_cast<std::size_t>(pool)].bytes().value();
      };
      const std::uint32_t kept = versions_kept(p, stage, passes_of_steps(p, 9)[stage]);
      EXPECT_EQ(bytes(PoolKind::resident_parameters) + bytes(PoolKind::stashed_parameters),
                kept * bytes(PoolKind::resident_parameters))
          << name(p) << ", stage " << stage;
    }
  }
}

}  // namespace
}  // namespace spillway::plan::stale_test
