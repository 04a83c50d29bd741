// Plans of a tensor group: what its ranks add up and gather, by the rules of a plan and by the
// published formulas.
#include <gtest/gtest.h>

#include <map>

#include "runtime/plan/placement/pools.hpp"
#include "tests/plan/expect_correct.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::tensor_group_test {
namespace {

TEST(StepsOfGroups, KeepEveryRuleOfAPlan) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 200; ++i) {
    const Case c = cases.next_of_group();
    expect_correct(c, {.place = cases.place_in(c.workload)});
  }
}

TEST(StepsOfGroups, DeclareAllThatTheyTouch) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 8; ++i) {
    const Case c = cases.next_of_group();
    expect_lost_accesses_seen(c, build_training_step(c.workload, c.placement),
                              /*training=*/true);
  }
}

TEST(StepsOfGroups, WaitForNothingThatOrdersNothing) {
  LostDependencies lost;
  RandomCases cases(property_seed());
  for (int i = 0; i < 12; ++i) {
    const Case c = cases.next_of_group();
    lost.try_each(build_training_step(c.workload, c.placement));
  }
  lost.expect_all_seen({"all_gather", "reduce_scatter", "all_reduce"});
}

/// Attention and MLP of one layer between embedding and head; 12 tokens, 8 wide, in 16 bits.
Workload layer_of_group(std::uint32_t ranks, bool sequence) {
  Workload w = small_workload();
  w.compute = DType::bf16;
  w.micro_batches = 3;
  w.tensor = {.count = ranks, .sequence = sequence};
  constexpr std::uint64_t kRows = 12 * 8 * 2;
  w.summed_bytes = w.carried_bytes = Bytes{kRows};
  w.boundary_bytes = Bytes{sequence ? kRows / ranks : kRows};
  w.scan_bytes = Bytes{12 * 24};
  for (BlockShape& block : w.blocks) block.partial_first = block.parameters;
  return w;
}

/// By block, what a rank sends to its group in a step.
std::map<std::uint32_t, std::uint64_t> sent_by_block(const Workload& w, std::uint32_t rank = 0) {
  const Placement p = uniform_placement(w, kAllOnDevice);
  std::map<std::uint32_t, std::uint64_t> sent;
  const WhichList which{.place = {.grid = w.grid(), .rank = rank}};
  for (const Op& op : build_training_step(w, p, which).ops) {
    if (op.lane != Lane::net) continue;
    EXPECT_EQ(op.group, RankGroup::tensor);
    sent[op.block] += op.bytes.value();
  }
  return sent;
}

// Shoeybi et al. 2019, Megatron-LM, section 3: two all-reduces of [tokens, width] in a layer's
// forward and two in its backward; a ring of t ranks sends 2 (t - 1) / t of each. One more for the
// embedding, and one for the head, whose ranks also exchange three numbers of 8 bytes for a token.
TEST(StepsOfGroups, SendFourAllReducesForALayer) {
  for (const std::uint32_t t : {2U, 3U, 4U}) {
    const std::uint64_t all_reduce = 12 * 8 * 2 * 2 * (t - 1) / t;
    const auto sent = sent_by_block(layer_of_group(t, false));
    EXPECT_EQ(sent.at(1) + sent.at(2), 3 * 4 * all_reduce);
    EXPECT_EQ(sent.at(0), 3 * all_reduce);
    EXPECT_EQ(sent.at(3), 3 * (all_reduce + (t - 1) * 12 * 24));
  }
}

// Of 96 elements, five ranks or seven have not the same part, and together they send what a ring
// sends: each element 2 (t - 1) times.
TEST(StepsOfGroups, SendInAllWhatARingSendsWhereElementsDoNotDivide) {
  for (const std::uint32_t t : {5U, 7U}) {
    const Workload w = layer_of_group(t, false);
    std::uint64_t sent = 0;
    for (std::uint32_t rank = 0; rank < t; ++rank) sent += sent_by_block(w, rank).at(0);
    EXPECT_EQ(sent, 3 * 2 * (t - 1) * 12 * 8 * 2U);
  }
}

// Korthikanti et al. 2022, section 4.2.2: in forward, a gather and a reduce-scatter take the place
// of each all-reduce and send as much; in backward the same, and once more what was gathered, which
// nobody has kept.
TEST(StepsOfGroups, ByTokensSendHalfAsMuchMoreInBackward) {
  for (const std::uint32_t t : {2U, 3U, 4U}) {
    const std::uint64_t half = 12 * 8 * 2 * (t - 1) / t;
    const auto sent = sent_by_block(layer_of_group(t, true));
    EXPECT_EQ(sent.at(1) + sent.at(2), 3 * 2 * (2 * half + 3 * half));
    EXPECT_EQ(sent.at(0), 3 * 2 * half);
    EXPECT_EQ(sent.at(3), 3 * (2 * half + (t - 1) * 12 * 24));
  }
}

std::uint64_t pool_bytes(PoolKind pool, const Workload& w) {
  const Pools pools = make_pools(w, uniform_placement(w, kAllOnDevice));
  return pools[static_cast<std::size_t>(pool)].bytes().value();
}

// Boundaries, which are all that is kept of a layer that is recomputed, are shared out with tokens.
TEST(StepsOfGroups, ByTokensKeepTheirOwnPartOfBoundaries) {
  EXPECT_EQ(pool_bytes(PoolKind::boundaries, layer_of_group(4, false)), 3 * 3 * 12 * 8 * 2U);
  EXPECT_EQ(pool_bytes(PoolKind::boundaries, layer_of_group(4, true)), 3 * 3 * 12 * 8 * 2U / 4);
}

TEST(StepsOfGroups, HaveRoomForWhatARankHasAndForWhatAllOfThemHave) {
  const Workload whole = layer_of_group(4, false);
  const Workload by_tokens = layer_of_group(4, true);
  constexpr std::uint64_t kAllRows = 3 * 12 * 8 * 2;
  EXPECT_EQ(pool_bytes(PoolKind::own_rows, by_tokens), kAllRows / 4);
  EXPECT_EQ(pool_bytes(PoolKind::own_rows, whole), 0U);
  for (const PoolKind gathered : {PoolKind::gathered_rows, PoolKind::gathered_gradients}) {
    EXPECT_EQ(pool_bytes(gathered, by_tokens), kAllRows);
    EXPECT_EQ(pool_bytes(gathered, whole), 0U);
  }
  for (const Workload& w : {whole, by_tokens}) {
    EXPECT_EQ(pool_bytes(PoolKind::vocabulary_scans, w), 3 * 12 * 24U);
    EXPECT_EQ(pool_bytes(PoolKind::gathered_scans, w), 4 * 3 * 12 * 24U);
  }
}

/// While one micro-batch is summed up, another one computes.
TEST(StepsOfGroups, SumWhileAnotherMicroBatchComputes) {
  const Workload w = layer_of_group(2, false);
  const StepPlan plan = build_training_step(w, uniform_placement(w, kAllOnDevice));
  const auto place = [&](OpKind kind, std::uint32_t block, std::uint32_t m) {
    const auto found = std::ranges::find_if(plan.ops, [&](const Op& op) {
      return op.kind == kind && op.block == block && op.micro_batch == m;
    });
    return found - plan.ops.begin();
  };
  EXPECT_LT(place(OpKind::forward, 1, 1), place(OpKind::forward, 2, 0));
  const Op& second = plan.ops[static_cast<std::size_t>(place(OpKind::forward, 1, 1))];
  for (const OpIndex waited : plan.dependencies_of(second)) {
    const Op& op = plan.ops[waited];
    EXPECT_FALSE(op.lane == Lane::net && op.block == 1 && op.micro_batch == 0);
  }
}

}  // namespace
}  // namespace spillway::plan::tensor_group_test
