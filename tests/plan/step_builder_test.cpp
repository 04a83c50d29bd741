// Plans as golden print-outs, and the rules that every plan keeps.
//
// A golden file that no longer fits its plan is printed by the failing test. If the new plan is
// right, run plan_test with SPILLWAY_UPDATE_GOLDEN=1 and read the difference before committing it.
#include "runtime/plan/step/step_builder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/plan/placement/pools.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::step_builder_test {
namespace {

constexpr BlockCut kStreamedNvme{.state = Tier::nvme};
constexpr BlockCut kStreamedHost{};
constexpr BlockCut kResidentHost{.parameters = Tier::device, .saved = Tier::device};

std::size_t count_of(const StepPlan& plan, OpKind kind) {
  return static_cast<std::size_t>(std::count_if(plan.ops.begin(), plan.ops.end(),
                                                [&](const Op& op) { return op.kind == kind; }));
}

TEST(StepBuilder, PrintsTrainingStepsAsTheGoldenFiles) {
  const Workload plain = small_workload();
  expect_golden("step_streamed_nvme.txt",
                to_text(build_training_step(plain, uniform_placement(plain, kStreamedNvme))));
  expect_golden("step_resident_host.txt",
                to_text(build_training_step(plain, uniform_placement(plain, kResidentHost))));
  expect_golden("step_device_only.txt",
                to_text(build_training_step(plain, uniform_placement(plain, kAllOnDevice))));

  Workload tied = small_workload();
  tie(tied);
  tied.compute = DType::bf16;
  expect_golden("step_tied_head.txt",
                to_text(build_training_step(tied, uniform_placement(tied, kStreamedHost))));

  Workload rounds = small_workload();
  rounds.rounds = rounds.micro_batches = 2;
  Placement placement = uniform_placement(rounds, kStreamedNvme);
  expect_golden("step_two_rounds.txt", to_text(build_training_step(rounds, placement)));
  placement.order = WorkOrder::micro_batch_major;
  placement.gradient_slots = 4;
  expect_golden("step_micro_batch_major.txt", to_text(build_training_step(rounds, placement)));
}

TEST(StepBuilder, PrintsOtherPlansAsTheGoldenFiles) {
  Workload workload = small_workload();
  workload.micro_batches = 2;
  Placement mixed = uniform_placement(workload, kStreamedNvme);
  mixed.blocks[1] = kAllOnDevice;
  mixed.blocks[2] = kResidentHost;
  expect_golden("flush.txt", to_text(build_flush(workload, mixed)));
  expect_golden("evaluation.txt", to_text(build_evaluation(workload, mixed)));
  expect_golden("snapshot.txt", to_text(build_snapshot(workload, mixed)));
  expect_golden("recorded_step.txt", to_text(build_recorded_step(workload, mixed)));
}

TEST(StepBuilder, CommitsInTheStepOnlyWhenAllStateIsOnDisk) {
  const Workload workload = small_workload();
  Placement placement = uniform_placement(workload, kStreamedNvme);
  EXPECT_EQ(count_of(build_training_step(workload, placement), OpKind::commit), 1U);
  EXPECT_EQ(count_of(build_flush(workload, placement), OpKind::commit), 1U);
  placement.blocks[2].state = Tier::host;
  EXPECT_EQ(count_of(build_training_step(workload, placement), OpKind::commit), 0U);
  EXPECT_EQ(count_of(build_flush(workload, placement), OpKind::commit), 0U);
  EXPECT_EQ(count_of(build_snapshot(workload, placement), OpKind::commit), 1U);
  EXPECT_EQ(count_of(build_recorded_step(workload, placement), OpKind::commit), 1U);
}

TEST(StepBuilder, AnUpdateMakesChecksumsOfWhatItsTileReadsAndWrites) {
  const Workload workload = small_workload();
  Placement placement = uniform_placement(workload, kStreamedNvme);
  placement.blocks[2].state = Tier::host;
  const StepPlan plan = build_training_step(workload, placement);
  std::map<std::uint32_t, Bytes> moved;
  std::vector<Op> updates;
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::update) updates.push_back(op);
    if (is_copy(op, kWriteState) || (is_copy(op, kReadState) && !op.held)) {
      moved[op.tile] += op.bytes;
    }
  }
  ASSERT_GT(moved.size(), 2U);
  for (const Op& update : updates) {
    const bool on_disk = placement.blocks[update.block].state == Tier::nvme;
    EXPECT_EQ(update.checksummed, on_disk ? moved.at(update.tile) : Bytes{}) << update.tile;
  }
}

TEST(StepBuilder, ReadsStateAheadAsFarAsItHasStagingSlotsAndNoFurther) {
  const Workload workload = small_workload();
  for (const std::uint32_t slots : {1U, 2U, 3U}) {
    // A block on the host between blocks on disk takes no slot and stops no read.
    Placement placement = uniform_placement(workload, kStreamedNvme);
    placement.blocks[1].state = Tier::host;
    placement.tile_parameters = ElementCount{kLeafParameters};
    placement.state_slots = slots;
    const StepPlan plan = build_training_step(workload, placement);
    std::vector<OpIndex> writes;
    std::size_t reads = 0;
    for (OpIndex i = 0; i < plan.ops.size(); ++i) {
      const Op& op = plan.ops[i];
      if (is_copy(op, kWriteState)) writes.push_back(i);
      if (!is_copy(op, kReadState)) continue;
      const auto dependencies = plan.dependencies_of(op);
      EXPECT_EQ(op.held, reads < slots);
      if (reads >= 6) {  // for the next step, once the slot's last tile is written
        const std::uint32_t slot = written_by(plan, op).first;
        EXPECT_EQ(op.tile, slot == 0 ? 0 : plan.ops[i - 1].tile + 1);
        ASSERT_FALSE(dependencies.empty());
        EXPECT_EQ(used_of(plan, plan.ops[dependencies.back()], PoolKind::state_staging),
                  std::vector{slot});
      } else if (reads < slots) {
        EXPECT_TRUE(dependencies.empty()) << "read " << reads << " of " << slots << " slots";
      } else {
        ASSERT_EQ(dependencies.size(), 1U);
        EXPECT_EQ(dependencies[0], writes.at(reads - slots));
      }
      ++reads;
    }
    EXPECT_EQ(reads, 6 + slots);
  }
}

TEST(StepBuilder, UpdatesEachBlockJustAheadOfItsForward) {
  const Workload workload = small_workload();
  Placement placement = uniform_placement(workload, kResidentHost);
  placement.blocks[0] = kStreamedHost;
  const StepPlan plan = build_training_step(workload, placement);
  // The upload that the first forward waits for must not queue behind later blocks' uploads.
  const auto first = std::find_if(plan.ops.begin(), plan.ops.end(),
                                  [](const Op& op) { return op.lane == Lane::h2d; });
  ASSERT_NE(first, plan.ops.end());
  EXPECT_EQ(first->block, 0U);
  std::uint32_t last = 0;
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::forward) last = op.block;
    if (op.kind == OpKind::update && op.block > 0) {
      EXPECT_EQ(op.block, last + 1);
    }
  }
}

TEST(StepBuilderProperty, EveryPlanIsFreeOfRacesAndFindsTheRightContent) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 1000; ++i) {
    expect_correct(cases.next());
    if (testing::Test::HasFatalFailure()) FAIL() << "case " << i;
  }
}

TEST(StepBuilderProperty, EveryTileIsUpdatedAndNormedOnceAndEveryMicroBatchWorkedOnce) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 1000; ++i) {
    const auto [workload, placement] = cases.next();
    const StepPlan plan = build_training_step(workload, placement);
    const std::vector<Tile> tiles = make_tiles(workload, placement.tile_parameters, /*replica=*/0);
    std::map<std::uint32_t, int> updates, norms;
    std::set<std::vector<std::uint32_t>> work;
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::update) ++updates[op.tile];
      if (op.kind == OpKind::grad_norm) ++norms[op.tile];
      if (op.kind == OpKind::forward || op.kind == OpKind::loss || op.kind == OpKind::backward) {
        const auto kind = static_cast<std::uint32_t>(op.kind);
        EXPECT_TRUE(work.insert({kind, op.block, op.round, op.micro_batch}).second);
      }
    }
    EXPECT_EQ(updates.size(), tiles.size());
    EXPECT_EQ(norms.size(), tiles.size());
    for (const auto& [tile, times] : updates) EXPECT_EQ(times, 1);
    for (const auto& [tile, times] : norms) EXPECT_EQ(times, 1);
    const std::size_t passes = std::size_t{workload.rounds} * workload.micro_batches;
    EXPECT_EQ(work.size(), passes * (2 * workload.blocks.size() - 1));
  }
}

TEST(StepBuilderProperty, NoDependencyCanBeLeftOut) {
  RandomCases cases(property_seed());
  LostDependencies dependencies;
  for (int i = 0; i < 120; ++i) {
    const auto [workload, placement] = i % 4 == 3 ? cases.next_tiled() : cases.next();
    dependencies.try_each(build_training_step(workload, placement));
    dependencies.try_each(build_recorded_step(workload, placement));
  }
  dependencies.expect_all_seen({"read_state", "write_state", "upload_params", "download_grads",
                                "forward", "backward", "loss", "accumulate", "grad_norm", "update",
                                "checksum", "commit"});
}

/// Bytes of a block's gradient, or of what one rank has of it, in one of the pools of slots.
Bytes gradient_bytes(const Workload& workload, std::uint32_t block, PoolKind pool) {
  const Bytes whole{workload.blocks[block].padded_parameters.value() *
                    size_of(pool == PoolKind::accumulators ? DType::fp32 : workload.compute)};
  const bool of_rank = pool == PoolKind::gradient_shards ||
                       (pool == PoolKind::landing_gradients && workload.replicas.count > 1);
  return of_rank ? whole / workload.shards() * std::uint64_t{workload.gradients_of_round()} : whole;
}

TEST(StepBuilderProperty, EveryGradientFitsTheSlotThatItPassesThrough) {
  RandomCases cases(property_seed());
  std::set<PoolKind> seen;
  bool exactly = false;
  for (int i = 0; i < 600; ++i) {
    const auto [workload, placement] = i % 4 == 3   ? cases.next_tiled()
                                       : i % 4 == 2 ? cases.next_of_ranks()
                                                    : cases.next();
    const StepPlan plan = build_training_step(workload, placement);
    const Pools pools = make_pools(workload, placement);
    for (const Op& op : plan.ops) {
      for (const Access& access : plan.accesses_of(op)) {
        const PoolKind kind = access.buffer.pool;
        if (kind != PoolKind::accumulators && kind != PoolKind::rounded_gradients &&
            kind != PoolKind::gradient_shards && kind != PoolKind::landing_gradients) {
          continue;
        }
        const bool vectors = access.buffer.first == placement.gradient_slots;
        const Pool& pool = pools[static_cast<std::size_t>(kind)];
        ASSERT_LT(access.buffer.first, pool.ends.size());
        const Bytes room{pool.ends[access.buffer.first] - pool.offset(access.buffer.first)};
        const Bytes needed = gradient_bytes(workload, vectors ? 0 : op.block, kind);
        ASSERT_GE(room, needed) << "case " << i << ": " << to_text(access.buffer);
        exactly |= access.buffer.first == 1 && room == needed;
        seen.insert(kind);
      }
    }
  }
  EXPECT_TRUE(exactly) << "no second slot was as small as a block";
  EXPECT_EQ(seen.size(), 4U);
}

TEST(StepBuilderProperty, NoDeclaredAccessCanBeLeftOut) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 20; ++i) {
    const Case c = i % 2 == 0 ? cases.next() : cases.next_tiled();
    expect_lost_accesses_seen(c, build_recorded_step(c.workload, c.placement), true);
    expect_lost_accesses_seen(c, build_evaluation(c.workload, c.placement), false);
    if (testing::Test::HasFatalFailure()) FAIL() << "case " << i;
  }
}

TEST(StepBuilderProperty, EqualInputsGiveEqualPlans) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 20; ++i) {
    const auto [workload, placement] = cases.next();
    EXPECT_EQ(to_text(build_training_step(workload, placement)),
              to_text(build_training_step(workload, placement)));
  }
}

}  // namespace
}  // namespace spillway::plan::step_builder_test
