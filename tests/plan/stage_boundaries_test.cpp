// Boundaries of a pipeline's stages that leave the device: the plans by the rules of a plan, what
// they move and hold against counts of layers, and the choice of those that leave.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/predict/price.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "tests/plan/choose_helpers.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/stage_plans.hpp"

namespace spillway::plan::stage_boundaries_test {
namespace {

using enum PipelineSchedule;

std::vector<Pipeline> pipelines() {
  std::vector<Pipeline> all;
  for (const std::uint32_t stages : {1U, 2U, 4U}) {
    for (const PipelineSchedule schedule : {naive, f_then_b, one_f_one_b}) {
      all.push_back({schedule, stages, 5, 1});
    }
    all.push_back({interleaved, stages, 2 * stages, 2});
  }
  all.push_back({one_f_one_b, 10, 12, 1});  // a layer each
  return all;
}

std::string name(const Pipeline& p, std::uint32_t stage) {
  return fmt::format("{} of {} stages, stage {}", name_of(p.schedule), p.stages, stage);
}

using Visit = std::function<void(const Pipeline&, const Workload& stage)>;

void each_stage(const Workload& model, const Visit& visit) {
  for (const Pipeline& p : pipelines()) {
    for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
      SCOPED_TRACE(name(p, stage));
      visit(p, workload_of_stage(model, p, stage));
    }
  }
}

Workload model_of_two(Head head = Head::own) {
  Workload model = model_of(8, head);
  model.micro_batches = 2;
  return model;
}

Placement off_device(const Workload& w, const BlockCut& cut, std::uint32_t slots = 1) {
  Placement placement = uniform_placement(w, cut);
  placement.boundary_slots = slots;
  placement.boundary_staging = cut.output == Tier::nvme ? 1 : 0;
  return placement;
}

constexpr BlockCut kHost{.parameters = Tier::device, .saved = Tier::device, .output = Tier::host};
constexpr BlockCut kDisk{.output = Tier::nvme};

/// Returns the number of boundaries that backward passes of a stage read: what comes into a chunk
/// and what its layers make, but for the last one's.
std::uint32_t held_by(const Workload& stage) {
  std::uint32_t held = 0;
  for (const auto& [first, end] : stage.stage.chunks) {
    const std::uint32_t layers = end - first;
    held += layers - (first == 0 ? 1 : 0) - (end == stage.layers() ? 1 : 0);
  }
  return held;
}

TEST(StageBoundaries, KeepEveryRuleOfAPlan) {
  for (const BlockCut& cut : {kHost, kDisk}) {
    each_stage(model_of_two(Head::tied), [&](const Pipeline&, const Workload& w) {
      Placement placement = off_device(w, cut);
      expect_correct({w, placement});
      placement.boundary_staging = 1;
      for (std::size_t b = 0; b < placement.blocks.size(); b += 2) {
        placement.blocks[b].output = kTiers[b / 2 % 3];
      }
      expect_correct({w, placement});
    });
  }
}

TEST(StageBoundaries, KeepEveryRuleOfAPlanOnAGrid) {
  for (const Sharding sharding : {Sharding::none, Sharding::state, Sharding::parameters}) {
    for (const bool sequence : {false, true}) {
      RandomCases cases(property_seed());
      Workload model = model_of_two();
      model.replicas = {.count = 2, .sharding = sharding};
      pad_for_ranks(model);
      cases.make_group(model);
      model.tensor.sequence = sequence;
      each_stage(model, [&](const Pipeline&, const Workload& w) {
        expect_correct({w, off_device(w, w.gathers() ? kDisk : kHost)});
      });
    }
  }
}

TEST(StageBoundaries, CrossTheLinkOnceEachWay) {
  each_stage(model_of_two(), [&](const Pipeline& p, const Workload& w) {
    const std::uint64_t moves = std::uint64_t{p.rounds} * w.micro_batches * held_by(w);
    for (const BlockCut& cut : {kHost, kDisk}) {
      const Placement placement = off_device(w, cut);
      const StepPlan plan = build_training_step(w, placement);
      const bool spills = cut.output == Tier::nvme;
      EXPECT_EQ(bytes_moved(plan, kSaveBoundary), w.boundary_bytes * moves);
      EXPECT_EQ(bytes_moved(plan, kLoadBoundary), w.boundary_bytes * moves);
      EXPECT_EQ(bytes_moved(plan, kSpillBoundary), Bytes{spills ? kPageBytes * moves : 0});
      EXPECT_EQ(bytes_moved(plan, kFetchBoundary), Bytes{spills ? kPageBytes * moves : 0});
      EXPECT_EQ(boundary_traffic(w, placement).saved, w.boundary_bytes * moves);
      const StepPlan evaluation = build_evaluation(w, placement);
      EXPECT_EQ(bytes_moved(evaluation, kSaveBoundary), Bytes{});
    }
  });
}

TEST(StageBoundaries, HaveThePriceOfWhatTheyMove) {
  each_stage(model_of_two(), [&](const Pipeline& p, const Workload& w) {
    const LaneWork there = work_of_blocks(w, uniform_placement(w, kResident));
    const LaneWork away = work_of_blocks(w, off_device(w, kHost));
    const auto moved =
        static_cast<double>(w.boundary_bytes.value()) * p.rounds * w.micro_batches * held_by(w);
    EXPECT_EQ(away.up - there.up, moved);
    EXPECT_EQ(away.down - there.down, moved);
  });
}

Bytes boundary_bytes(const Workload& w, const Placement& placement) {
  const Pools pools = make_pools(w, placement);
  Bytes bytes;
  for (const PoolKind pool : {PoolKind::boundaries, PoolKind::boundary_gradients,
                              PoolKind::boundary_slots, PoolKind::recomputed_boundary}) {
    bytes += pools[static_cast<std::size_t>(pool)].bytes();
  }
  return bytes;
}

/// Returns a stage of a model in which each has two layers of equal work.
Workload even_stage(PipelineSchedule schedule, std::uint32_t stages, std::uint32_t rounds,
                    std::uint32_t stage) {
  Workload model = model_of(2 * stages);
  for (BlockShape& block : model.blocks) block.forward_flops = block.backward_flops = 0;
  for (std::uint32_t layer = 1; layer < model.head_layer(); ++layer) {
    model.blocks[layer].forward_flops = 1e12;
    model.blocks[layer].backward_flops = 2e12;
  }
  return workload_of_stage(model, {schedule, stages, rounds, 1}, stage);
}

// The published count of what a stage keeps (stages_test.cpp) is that of the host now. In slots are
// what passes, two that come and go, one that waits to be sent or read, and the output that
// recomputation makes again.
TEST(StageBoundaries, TakeTheDeviceMemoryOfNoRoundInFlight) {
  for (const std::uint32_t stages : {2U, 4U, 8U}) {
    const Workload w = even_stage(one_f_one_b, stages, 2 * stages, stages == 2 ? 0 : 1);
    const std::uint64_t in_flight = stages == 2 ? 2 : stages - 1;
    const std::uint64_t here = 3;  // stage 0 has the embedding, stage 1 what comes in
    const Placement placement = off_device(w, kHost, 2);
    EXPECT_EQ(boundary_bytes(w, uniform_placement(w, kResident)),
              w.boundary_bytes * ((here + 1) * in_flight));
    EXPECT_EQ(boundary_bytes(w, placement), w.boundary_bytes * (stages == 2 ? 4ULL : 5ULL));
    const Bytes host =
        needed(w, placement, Tier::host) - needed(w, uniform_placement(w, kResident), Tier::host);
    EXPECT_EQ(host, w.boundary_bytes * (2 * in_flight));
  }
}

// All passes forward come first: the last stage has made all gradients by then, one a round.
TEST(StageBoundaries, OfFThenBLeaveGradientsOfAllRoundsOnTheLastStage) {
  for (const std::uint32_t rounds : {2U, 5U, 13U}) {
    const Workload first = even_stage(f_then_b, 2, rounds, 0);
    const Workload last = even_stage(f_then_b, 2, rounds, 1);
    EXPECT_EQ(boundary_bytes(first, off_device(first, kHost, 2)), first.boundary_bytes * 4ULL);
    EXPECT_EQ(boundary_bytes(last, off_device(last, kHost, 2)),
              last.boundary_bytes * (3ULL + rounds));
  }
}

/// Returns the slots that the plan uses.
std::size_t slots_in(const StepPlan& plan) {
  std::vector<std::uint32_t> slots;
  for (const Access& access : plan.accesses) {
    if (access.buffer.pool == PoolKind::boundary_slots) slots.push_back(access.buffer.first);
  }
  std::ranges::sort(slots);
  return static_cast<std::size_t>(std::ranges::unique(slots).begin() - slots.begin());
}

TEST(StageBoundaries, UseEverySlot) {
  each_stage(model_of_two(), [&](const Pipeline&, const Workload& w) {
    const Placement placement = off_device(w, kHost);
    EXPECT_EQ(slots_in(build_training_step(w, placement)), device_boundary_slots(w, placement));
  });
}

/// Copies that take no time leave the passes of all stages where they are.
TEST(StageBoundaries, HoldUpNoPassOfAnEvenPipeline) {
  constexpr double kInstant = 1e30;
  MachineProfile profile;
  profile.gpu_flops = 1e12;
  profile.h2d = profile.d2h = profile.net = profile.update = kInstant;
  for (const PipelineSchedule schedule : {naive, f_then_b, one_f_one_b}) {
    constexpr std::uint32_t kStages = 4;
    std::vector<StepPlan> there, away;
    for (std::uint32_t stage = 0; stage < kStages; ++stage) {
      const Workload w = even_stage(schedule, kStages, 7, stage);
      there.push_back(build_training_step(w, uniform_placement(w, kResident)));
      away.push_back(build_training_step(w, off_device(w, kHost)));
    }
    EXPECT_NEAR(simulate_stages(away, profile)[0].step_seconds,
                simulate_stages(there, profile)[0].step_seconds, 1e-9)
        << name_of(schedule);
  }
}

/// Returns the layers whose outputs the stage has, and not on the device.
std::vector<std::uint32_t> away_in(const Workload& w, const Placement& placement) {
  std::vector<std::uint32_t> away;
  for (std::uint32_t layer = 0; layer < w.head_layer(); ++layer) {
    const bool here = w.has_output(layer);
    if (here && placement.blocks[layer].output != Tier::device) away.push_back(layer);
  }
  return away;
}

/// As many leave the device as must, the earliest first.
TEST(StageBoundaries, LeaveTheDeviceAsFarAsItIsTooSmall) {
  const PlacementRequest request{
      .state = Tier::host, .resident = true, .keep = true, .sums = false};
  each_stage(model_of_two(), [&](const Pipeline&, const Workload& w) {
    PlacementRequest all = request;
    all.activations = Tier::host;
    const Bytes least = needed(w, chosen(w, kUnlimited, all), Tier::device);
    all.activations = Tier::device;
    const Bytes most = needed(w, chosen(w, kUnlimited, all), Tier::device);
    Budgets budgets = kUnlimited;
    for (Bytes device = most; device >= least; device = device - w.boundary_bytes) {
      budgets.device = device;
      const Placement placement = chosen(w, budgets, request);
      ASSERT_LE(needed(w, placement, Tier::device), device);
      EXPECT_EQ(placement.boundary_slots > 0, device < most);
      const std::vector<std::uint32_t> away = away_in(w, placement);
      if (away.size() > 1) {
        Placement fewer = placement;
        fewer.blocks[away.back()].output = Tier::device;
        EXPECT_GT(needed(w, fewer, Tier::device), device);
      }
      if (device < least + w.boundary_bytes) break;
    }
  });
}

}  // namespace
}  // namespace spillway::plan::stage_boundaries_test
