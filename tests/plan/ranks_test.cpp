// Plans of many ranks: what passes between them, and that each rank's part is its own.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/reduction.hpp"
#include "runtime/plan/search/choose.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::ranks_test {
namespace {

constexpr BlockCut kResident{.parameters = Tier::device, .saved = Tier::device};

Workload of_ranks(const Replicas& ranks) {
  Workload workload = small_workload();
  workload.compute = DType::bf16;
  workload.replicas = ranks;
  pad_for_ranks(workload);
  return workload;
}

Placement placement_of(const Workload& workload) {
  return uniform_placement(workload, workload.gathers() ? BlockCut{} : kResident);
}

Bytes sent_in(const StepPlan& plan) {
  Bytes sum;
  for (const Op& op : plan.ops) {
    if (op.lane == Lane::net) sum += op.bytes;
  }
  return sum;
}

TEST(Reduction, GivesARankItsShardOfTheSumOrOfEachGradient) {
  struct Case {
    Sharding sharding;
    SumOrder sums;
    OpKind kind;
    std::uint64_t shard;
    std::uint32_t gradients;
  };
  const Case cases[] = {{Sharding::none, SumOrder::fast, OpKind::all_reduce, 120, 1},
                        {Sharding::none, SumOrder::fixed, OpKind::all_gather, 120, 4},
                        {Sharding::state, SumOrder::fast, OpKind::reduce_scatter, 30, 1},
                        {Sharding::state, SumOrder::fixed, OpKind::all_to_all, 30, 4}};
  for (const Case& each : cases) {
    Workload workload;
    workload.replicas = {.count = 4, .sharding = each.sharding, .sums = each.sums};
    const Reduction reduction = reduction_of(workload, ElementCount{120});
    EXPECT_EQ(reduction.kind, each.kind);
    EXPECT_EQ(reduction.given, ElementCount{120});
    EXPECT_EQ(reduction.shard, ElementCount{each.shard});
    EXPECT_EQ(reduction.got(), ElementCount{each.shard * each.gradients});
    EXPECT_EQ(reduction.in_place(), each.kind == OpKind::all_reduce);
  }
}

TEST(StepsOfRanks, KeepEveryRuleOfAPlan) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 200; ++i) expect_correct(cases.next_of_ranks());
}

TEST(StepsOfRanks, DeclareAllThatTheyTouch) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 8; ++i) {
    const Case c = cases.next_of_ranks();
    expect_lost_accesses_seen(c, build_training_step(c.workload, c.placement), /*training=*/true);
  }
}

TEST(StepsOfRanks, WaitForNothingThatOrdersNothing) {
  LostDependencies lost;
  RandomCases cases(property_seed());
  for (int i = 0; i < 12; ++i) {
    const Case c = cases.next_of_ranks();
    lost.try_each(build_training_step(c.workload, c.placement));
  }
  lost.expect_all_seen({"all_gather", "reduce_scatter", "all_to_all", "all_reduce"});
}

TEST(StepsOfRanks, PrintAsTheGoldenFiles) {
  const Workload gathered = of_ranks({.count = 2, .sharding = Sharding::parameters});
  expect_golden("step_of_ranks_gathered.txt",
                to_text(build_training_step(gathered, placement_of(gathered))));
  const Workload shared =
      of_ranks({.count = 2, .sharding = Sharding::state, .sums = SumOrder::fixed});
  expect_golden("step_of_ranks_fixed_sums.txt",
                to_text(build_training_step(shared, placement_of(shared))));
}

// Rajbhandari et al. 2020, ZeRO, section 7: with P parameters, a rank sends 2P, 2P and 3P in stages
// 0, 2 and 3, each times (N - 1) / N. The embedding's backward and the loss, which is both passes
// of the head, read no parameters a second time.
TEST(StepsOfRanks, SendWhatTheStagesOfZeroSend) {
  for (const std::uint32_t count : {2U, 3U, 8U}) {
    for (const Sharding sharding : {Sharding::none, Sharding::state, Sharding::parameters}) {
      const Workload w = of_ranks({.count = count, .sharding = sharding});
      std::uint64_t all = 0;
      for (const BlockShape& block : w.blocks) all += block.padded_parameters.value();
      const std::uint64_t layers =
          w.blocks[1].padded_parameters.value() + w.blocks[2].padded_parameters.value();
      const std::uint64_t moved = sharding == Sharding::parameters ? 2 * all + layers : 2 * all;
      EXPECT_EQ(sent_in(build_training_step(w, placement_of(w))).value(),
                moved * 2 * (count - 1) / count)
          << count;
    }
  }
}

// Wang et al. 2023, ZeRO++, section 3.2: backward gathers on the node, so that over the network a
// rank sends P fewer of the 3P; a rank of a node of S keeps P / S.
TEST(StepsOfRanks, WithASecondCopyGatherOverTheNetworkOnce) {
  constexpr std::uint32_t kCount = 8;
  for (const std::uint32_t node : {2U, 4U, 8U}) {
    for (const std::uint32_t rounds : {1U, 3U}) {
      Workload w = of_ranks({.count = kCount, .sharding = Sharding::parameters, .secondary = node});
      w.rounds = rounds;
      std::uint64_t all = 0;
      for (const BlockShape& block : w.blocks) all += block.padded_parameters.value();
      const std::uint64_t layers =
          w.blocks[1].padded_parameters.value() + w.blocks[2].padded_parameters.value();
      const std::uint64_t visited_again = (rounds - 1) * all + rounds * layers;
      std::uint64_t network = 0;
      std::uint64_t on_node = 0;
      for (const Op& op : build_training_step(w, placement_of(w)).ops) {
        if (op.lane != Lane::net) continue;
        (op.group == RankGroup::node ? on_node : network) += op.bytes.value();
      }
      EXPECT_EQ(network, (all + rounds * all) * 2 * (kCount - 1) / kCount);
      EXPECT_EQ(on_node, visited_again * 2 * (node - 1) / node);
      const std::uint64_t kept = rounds > 1 ? all : layers;
      EXPECT_EQ(
          make_pools(w, placement_of(w))[static_cast<std::size_t>(PoolKind::secondary_parameters)]
              .bytes()
              .value(),
          2 * kept / node);
    }
  }
}

TEST(StepsOfRanks, GatherOnTheNodeAtTheNodesRate) {
  const Workload w = of_ranks({.count = 4, .sharding = Sharding::parameters, .secondary = 2});
  MachineProfile machine;
  machine.gpu_flops = 1e15;
  machine.h2d = machine.d2h = machine.update = 1e15;
  machine.net = 1e6;
  const StepPlan plan = build_training_step(w, placement_of(w));
  const auto busy_of = [&](double rate) {
    machine.net_node = rate;
    return simulate(plan, machine)[Lane::net].busy;
  };
  double on_node = 0;
  for (const Op& op : plan.ops) {
    if (op.group == RankGroup::node) on_node += static_cast<double>(op.bytes.value());
  }
  ASSERT_GT(on_node, 0);
  EXPECT_NEAR(busy_of(0) - busy_of(4e6), on_node / 1e6 * 0.75, on_node * 1e-12);
}

TEST(StepsOfRanks, CutEveryBlockIntoEqualShardsThatCoverIt) {
  constexpr std::uint32_t kCount = 3;
  const Workload w = of_ranks({.count = kCount, .sharding = Sharding::state});
  std::vector<std::vector<int>> covered;
  for (std::uint32_t rank = 0; rank < kCount; ++rank) {
    covered.resize(w.blocks.size());
    for (std::size_t b = 0; b < w.blocks.size(); ++b) {
      covered[b].resize(w.blocks[b].padded_parameters / ElementCount{kLeafParameters});
    }
    for (const Tile& tile : make_tiles(w, ElementCount{2 * kLeafParameters}, rank)) {
      ASSERT_EQ(tile.first.value() % kLeafParameters, 0U);
      const std::size_t first = tile.first / ElementCount{kLeafParameters};
      for (std::size_t i = 0; i < tile.count / ElementCount{kLeafParameters}; ++i) {
        ++covered[tile.block].at(first + i);
      }
    }
  }
  for (const auto& block : covered) EXPECT_EQ(block, std::vector<int>(block.size(), 1));
}

// Rajbhandari et al. 2020, table 1: a rank holds 2 bytes a parameter and 2 a gradient in 16 bits,
// and K of state, each divided by the ranks from its stage on. The whole copy of parameters is on
// the device, or, from stage 3 on, none is; shards of parameters and gradients wait on the host.
TEST(StepsOfRanks, HoldOneShardOfState) {
  const Replicas base{.count = 4};
  for (const Sharding sharding : {Sharding::none, Sharding::state, Sharding::parameters}) {
    Replicas ranks = base;
    ranks.sharding = sharding;
    const Workload w = of_ranks(ranks);
    const Pools pools = make_pools(w, placement_of(w));
    std::uint64_t all = 0;
    for (const BlockShape& block : w.blocks) all += block.padded_parameters.value();
    const std::uint64_t own = sharding == Sharding::none ? all : all / base.count;
    const auto bytes = [&](PoolKind pool) {
      return pools[static_cast<std::size_t>(pool)].bytes().value();
    };
    EXPECT_EQ(bytes(PoolKind::host_parameters), 2 * own);
    EXPECT_EQ(bytes(PoolKind::host_gradients), 2 * own);
    EXPECT_EQ(bytes(PoolKind::resident_parameters), sharding == Sharding::none ? 2 * all : 0);
    EXPECT_EQ(bytes(PoolKind::whole_parameters), sharding == Sharding::state ? 2 * all : 0);
  }
}

// golden/zero_memory_per_device.json: parameters, gradients and state of one rank. In stage 2 the
// host also holds the shard of parameters that it uploads.
TEST(StepsOfRanks, HoldWhatThePublishedTableSays) {
  const nlohmann::json golden = golden_json("zero_memory_per_device.json");
  for (const nlohmann::json& row : golden["rows"]) {
    const std::uint32_t count = row["ranks"];
    if (count == 1) continue;  // stages begin with two
    for (const auto& [name, parameters] : {std::pair("7.5e9", 7.5e9), {"128e9", 128e9}}) {
      constexpr std::uint64_t kBlocks = 8;
      Workload w = small_workload();
      w.blocks.assign(kBlocks, w.blocks[1]);
      for (BlockShape& block : w.blocks) {
        block.parameters = ElementCount{static_cast<std::uint64_t>(parameters) / kBlocks};
      }
      w.compute = DType::bf16;
      for (const Sharding sharding : {Sharding::state, Sharding::parameters}) {
        w.replicas = {.count = count, .sharding = sharding};
        pad_for_ranks(w);
        Placement placement = placement_of(w);
        placement.tile_parameters = ElementCount{2U << 20};
        double held = 0;
        for (const MemoryItem& item : memory_items(w, placement)) {
          const bool states = item.what == "gathered parameters" || item.what == "parameters" ||
                              item.what == "waiting gradients" || item.what == "optimizer state";
          if (states) held += static_cast<double>(item.bytes.value()) * 1e-9;
        }
        const bool stage3 = sharding == Sharding::parameters;
        const double uploaded = stage3 ? 0 : 2 * parameters / count * 1e-9;
        const double published = row[name][stage3 ? 2 : 1];
        EXPECT_NEAR(held - uploaded, published, std::max(0.02 * published, 0.06))
            << count << " " << name;
      }
    }
  }
}

TEST(StepsOfRanks, OverlapCollectivesWithPasses) {
  const Workload w = of_ranks({.count = 2, .sharding = Sharding::parameters});
  MachineProfile machine;
  machine.gpu_flops = 1e9;
  machine.h2d = machine.d2h = machine.update = 1e12;
  machine.net = 1e6;
  const Prediction slow = simulate(build_training_step(w, placement_of(w)), machine);
  EXPECT_EQ(slow.bounding, Lane::net);
  machine.net = 1e9;
  const Prediction fast = simulate(build_training_step(w, placement_of(w)), machine);
  EXPECT_LT(fast.step_seconds, slow.step_seconds);
  EXPECT_LT(fast[Lane::net].exposed, fast[Lane::net].busy);
}

// With a slot beside the one in use, the next block is gathered while backward computes, though its
// gradient's reduction, which waits for backward, stands on the same lane.
TEST(StepsOfRanks, GatherTheNextBlockDuringBackward) {
  const Workload w = of_ranks({.count = 2, .sharding = Sharding::parameters});
  Placement placement = placement_of(w);
  for (const std::uint32_t slots : {1U, 2U, 3U}) {
    placement.parameter_slots = slots;
    const StepPlan plan = build_training_step(w, placement);
    std::vector<std::uint32_t> order;  // blocks that are gathered, and 100 for each reduction
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::all_gather) order.push_back(op.block);
      if (op.kind == OpKind::reduce_scatter) order.push_back(100);
    }
    const std::vector<std::uint32_t> expected[] = {
        {0, 1, 2, 3, 100, 2, 100, 1, 100, 100},
        {0, 1, 2, 3, 2, 100, 1, 100, 100, 100},
        {0, 1, 2, 3, 2, 1, 100, 100, 100, 100},
    };
    EXPECT_EQ(order, expected[slots - 1]);
  }
}

TEST(PlacementOfRanks, LeavesTheUpdateToTheHostAndParametersWholeBelowStage3) {
  const Budgets plenty{1_GiB, 1_GiB, 1_GiB};
  for (const Sharding sharding : {Sharding::none, Sharding::state, Sharding::parameters}) {
    const Workload w = of_ranks({.count = 2, .sharding = sharding});
    const auto choice = choose_placement(w, plenty, {});
    const auto& placement = std::get<Placement>(choice);
    for (const BlockCut& cut : placement.blocks) {
      EXPECT_NE(cut.state, Tier::device);
      EXPECT_TRUE(cut.resident());
    }
    expect_correct({w, placement});
  }
}

TEST(PlacementOfRanks, RefusesWhatRanksCannotDo) {
  const Budgets plenty{1_GiB, 1_GiB, 1_GiB};
  Workload w = of_ranks({.count = 2, .sharding = Sharding::state});
  EXPECT_THROW(std::ignore = choose_placement(w, plenty, {.state = Tier::device}), Error);
  EXPECT_THROW(std::ignore = choose_placement(w, plenty, {.order = WorkOrder::micro_batch_major}),
               Error);
  w.operator_tiles = true;
  EXPECT_THROW(std::ignore = choose_placement(w, plenty, {}), Error);
}

}  // namespace
}  // namespace spillway::plan::ranks_test
