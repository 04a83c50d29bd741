// Estimates of steps on grids, against published values and sums by hand.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "runtime/plan/grid/estimate.hpp"
#include "runtime/plan/grid/rank_grids.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::grid_estimate_test {
namespace {

constexpr std::uint64_t kBlock = std::uint64_t{1} << 20;

/// Embedding, two layers and head of one size: forward of each takes 1 s, and backward 2 s, on a
/// device of 1 FLOP/s.
GridWork even_work(std::uint64_t micro_batches) {
  GridWork work;
  work.workload = small_workload();
  work.workload.compute = DType::bf16;
  for (BlockShape& block : work.workload.blocks) {
    block.parameters = block.padded_parameters = ElementCount{kBlock};
    block.forward_flops = 1;
    block.backward_flops = 2;
  }
  work.shape = {.layers = 2,
                .width = 16,
                .kv_width = 16,
                .mlp_width = 64,
                .vocabulary = 32,
                .mlp_matrices = 2};
  work.heads = work.kv_heads = 8;
  work.micro_batches = micro_batches;
  return work;
}

/// Nothing but compute takes time.
GridMachine fast_network() {
  return {.flops = 1,
          .device_update = 1e30,
          .inside = 1e30,
          .between = 1e30,
          .device = 1024_GiB,
          .gpus = 8};
}

GridSeconds seconds_of_choice(const GridWork& work, const GridMachine& machine,
                              const GridChoice& choice) {
  return seconds_on(work, pipeline_on(work, choice.replicas, choice.stages), machine, choice);
}

GridMemory memory_of_choice(const GridWork& work, const GridChoice& choice) {
  return memory_on(work, pipeline_on(work, choice.replicas, choice.stages), choice);
}

TEST(GridEstimate, ComputesForAsLongAsTheWorkTakes) {
  const GridWork work = even_work(6);
  const GridSeconds one = seconds_of_choice(work, fast_network(), {});
  EXPECT_DOUBLE_EQ(one.step(), 6 * 4 * 3);
  EXPECT_EQ(one.bound(), "compute");
  const GridChoice shared{{TensorMethod::columns, 2}, 3, 1};
  EXPECT_NEAR(seconds_of_choice(work, fast_network(), shared).step(), 6 * 4 * 3 / 6.0, 1e-9);
}

TEST(GridEstimate, RecomputesTheForwardOfLayers) {
  const GridWork work = even_work(6);
  const GridSeconds again = seconds_of_choice(work, fast_network(), {.keeps_activations = false});
  EXPECT_DOUBLE_EQ(again.recompute, 6 * 2);  // neither of the embedding nor of the head
  EXPECT_DOUBLE_EQ(again.step(), 6 * (4 * 3 + 2));
  EXPECT_EQ(again.largest_loss(), "memory");
}

// Narayanan et al. 2021, section 2.2: (p - 1) / m of the compute.
TEST(GridEstimate, HasTheBubbleOfThePublishedFormula) {
  for (const std::uint64_t rounds : {1U, 4U, 16U}) {
    const GridSeconds piped = seconds_of_choice(even_work(rounds), fast_network(), {.stages = 4});
    EXPECT_NEAR(piped.bubble / piped.compute, 3.0 / static_cast<double>(rounds), 1e-9);
  }
}

TEST(GridEstimate, WaitsForMessagesBetweenStages) {
  const GridWork work = even_work(1);
  GridMachine machine = fast_network();
  machine.inside = static_cast<double>(work.workload.boundary_bytes.value());  // 1 s
  EXPECT_NEAR(seconds_of_choice(work, machine, {.stages = 2}).step(), 4 * 3 + 2, 1e-9);
  machine.gpus = 1;  // each stage is on a machine of its own
  EXPECT_NEAR(seconds_of_choice(work, machine, {.stages = 2}).step(), 4 * 3, 1e-9);
}

constexpr std::array kZeroStages{"data_parallel", "stage1", "stage2", "stage3"};

TEST(GridEstimate, ReplicasSendWhatTheStageOfZeroSends) {
  const nlohmann::json golden =
      golden_json("zero_memory_per_device.json").at("communication_elements_per_step");
  const GridWork work = even_work(8);
  GridMachine machine = fast_network();
  machine.flops = 1e30;  // nothing hides what is sent
  machine.inside = 1e6;
  for (std::uint32_t zero = 0; zero < kZeroStages.size(); ++zero) {
    const GridSeconds s = seconds_of_choice(work, machine, {.replicas = 8, .zero_stage = zero});
    const double times = golden.at(kZeroStages[zero]) == "3P" ? 3 : 2;
    // Of 4 blocks of 16-bit elements a ring of 8 ranks sends seven parts of eight.
    EXPECT_NEAR(s.data * 1e6, times * 4 * kBlock * 2 * 7 / 8, 1) << zero;
    EXPECT_EQ(s.largest_loss(), "data traffic");
  }
}

TEST(GridEstimate, BackwardHidesTheReductionButForALayer) {
  const GridWork work = even_work(2);
  GridMachine machine = fast_network();
  // All-reduce of two replicas: each sends all 16-bit gradients once. It takes 4 s, of which one
  // layer's, the last one's, begins when backward is over.
  machine.inside = 2.0 * 4 * kBlock / 4;
  const GridSeconds hidden = seconds_of_choice(work, machine, {.replicas = 2});
  EXPECT_DOUBLE_EQ(hidden.data, 1);
  // 40 s: 8 s of backward less the first layer's 2 s hide a part.
  machine.inside /= 10;
  const GridSeconds longer = seconds_of_choice(work, machine, {.replicas = 2});
  EXPECT_DOUBLE_EQ(longer.data, 40 - 6);
}

TEST(GridEstimate, TensorRanksSendBetweenTheirMatrices) {
  const GridWork work = even_work(1);
  GridMachine machine = fast_network();
  machine.inside = 1;
  const TensorCut cut{TensorMethod::columns, 4};
  const auto tokens = static_cast<double>(work.workload.tokens);
  const SentElements layer = sent_by_layer(cut, work.shape, tokens);
  const SentElements head = sent_elements(cut, head_product(work.shape, tokens));
  const GridSeconds s = seconds_of_choice(work, machine, {.cut = cut});
  const double elements = 2 * (layer.forward + layer.backward) + head.forward + head.backward;
  EXPECT_DOUBLE_EQ(s.tensor, 2 * elements);
  const GridSeconds again =
      seconds_of_choice(work, machine, {.cut = cut, .keeps_activations = false});
  EXPECT_DOUBLE_EQ(again.tensor, 2 * (elements + 2 * layer.forward));
  // A group that does not fit into a machine is as slow as the network between machines.
  machine.gpus = 6;
  EXPECT_LT(seconds_of_choice(work, machine, {.cut = cut}).tensor, 1e-9);
}

// The published formulas have a 16-bit gradient; a sum of rounds has 32 bits.
TEST(GridEstimate, ZeroDividesMemoryAsPublished) {
  const nlohmann::json bytes_per_parameter = golden_json("zero_memory_per_device.json")
                                                 .at("examples")
                                                 .at("1e9 parameters, 8 ranks, GB per device");
  const GridWork work = even_work(8);
  for (std::uint32_t zero = 0; zero < kZeroStages.size(); ++zero) {
    const GridMemory m = memory_of_choice(work, {.replicas = 8, .zero_stage = zero});
    const double gathered = zero == 3 ? 2 * 2.0 * kBlock : 0;
    EXPECT_DOUBLE_EQ(m.parameters - gathered + m.gradients / 2 + m.state,
                     bytes_per_parameter.at(kZeroStages[zero]).get<double>() * 4 * kBlock);
  }
}

// A layer saves 1,000 bytes, of which 256 are the residual in its middle, and reads 256.
TEST(GridEstimate, CutsDivideActivations) {
  const GridWork work = even_work(8);
  const auto activations = [&](const GridChoice& choice) {
    return memory_of_choice(work, choice).activations;
  };
  EXPECT_DOUBLE_EQ(activations({}), 2 * 1000 + 3 * 256);
  EXPECT_DOUBLE_EQ(activations({.cut = {TensorMethod::columns, 4}}),
                   2 * (744 / 4.0 + 256) + 3 * 256);
  EXPECT_DOUBLE_EQ(activations({.cut = {TensorMethod::sequence, 4}}), (2 * 1000 + 3 * 256) / 4.0);
  EXPECT_DOUBLE_EQ(activations({.keeps_activations = false}), 1000 + 3 * 256);
  // 1F1B: the first of four stages has the embedding, the second one layer of three rounds.
  EXPECT_DOUBLE_EQ(activations({.stages = 4}), 3 * (1000 + 256.0));
}

TEST(RankGrids, TriesEachGridOnceAndTheQuickestIsFirst) {
  GridMachine machine = fast_network();
  machine.inside = machine.between = 1e8;
  const GridRanking ranking = rank_grids(even_work(16), machine, {.ranks = 16});
  std::set<std::array<std::uint32_t, 3>> tried;
  const auto note = [&](const GridChoice& c) {
    EXPECT_EQ(c.ranks(), 16U);
    EXPECT_TRUE(tried.insert({c.cut.ranks(), c.replicas, c.stages}).second);
  };
  double last = 0;
  for (const RankedGrid& grid : ranking.fitting) {
    note(grid.choice);
    EXPECT_GE(grid.seconds.step(), last);
    last = grid.seconds.step();
  }
  for (const DroppedGrid& grid : ranking.dropped) note(grid.choice);
  // Tensor 1, 2, 4 and 8 leave 16, 8, 4 and 2 ranks, which have 5, 4, 3 and 2 divisors.
  EXPECT_EQ(tried.size(), 5U + 4 + 3 + 2);
  const GridRanking across = rank_grids(even_work(16), machine, {.ranks = 16, .across = true});
  EXPECT_EQ(across.fitting.size() + across.dropped.size(), 5U + 4 + 3 + 2 + 1);
}

TEST(RankGrids, SaysWhyAGridIsDropped) {
  GridMachine machine = fast_network();
  machine.device = Bytes{1};
  const GridRanking small = rank_grids(even_work(2), machine, {.ranks = 8});
  EXPECT_TRUE(small.fitting.empty());
  const DroppedGrid& least = small.dropped.front();
  EXPECT_NE(least.reason.find("of 0.0 GB at least"), std::string::npos) << least.reason;
  const auto reason = [&](std::uint32_t replicas, std::uint32_t stages) {
    for (const DroppedGrid& grid : small.dropped) {
      if (grid.choice.replicas == replicas && grid.choice.stages == stages) return grid.reason;
    }
    return std::string("not dropped");
  };
  EXPECT_EQ(reason(8, 1), "2 micro-batches do not divide among 8 replicas");
  EXPECT_EQ(reason(1, 8), "4 layers, embedding and head counted, are fewer than 8 parts");
  const GridRanking many = rank_grids(even_work(1U << 18), machine, {.ranks = 1});
  EXPECT_EQ(many.dropped.front().reason,
            "524288 passes are more than the 262144 that can be estimated");
  GridWork odd = even_work(2);
  odd.kv_heads = 3;
  const GridRanking headless = rank_grids(odd, machine, {.ranks = 8});
  EXPECT_EQ(headless.dropped.back().reason, "8 heads and 3 of keys do not divide among 8 ranks");
}

}  // namespace
}  // namespace spillway::plan::grid_estimate_test
