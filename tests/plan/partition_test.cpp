#include "runtime/plan/placement/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/error.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/standard_graph.hpp"

namespace spillway::plan::partition_test {
namespace {

std::set<std::string> cpu_names(const DataflowGraph& graph, const Cut& cut) {
  std::set<std::string> found;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    if (cut.on_cpu(i)) found.insert(graph.nodes[i].name);
  }
  return found;
}

/// The cuts that move no more than the first.
std::vector<Cut> cheapest(const DataflowGraph& graph) {
  std::vector<Cut> cuts = all_cuts(graph);
  std::erase_if(cuts,
                [least = cuts.at(0).traffic()](const Cut& cut) { return cut.traffic() > least; });
  return cuts;
}

TEST(Partition, FindsTheThreeMinimumCutsOfZeroOffload) {
  const nlohmann::json golden = golden_json("zero_offload_partition.json");
  const DataflowGraph graph = standard_graph();
  const std::uint64_t least = golden.at("minimum_cut_bytes_per_parameter");

  std::set<std::pair<std::set<std::string>, std::uint64_t>> expected;
  for (const auto& cut : golden.at("minimum_cuts_cpu_side")) {
    expected.emplace(cut.at("cpu").get<std::set<std::string>>(),
                     cut.at("gpu_bytes_saved").get<std::uint64_t>());
  }
  ASSERT_EQ(expected.size(), 3U);
  std::set<std::pair<std::set<std::string>, std::uint64_t>> found;
  for (const Cut& cut : cheapest(graph)) {
    EXPECT_EQ(cut.traffic().value(), least);
    found.emplace(cpu_names(graph, cut), cut.cpu_bytes.value());
  }
  EXPECT_EQ(found, expected);
}

TEST(Partition, SavesMostMemoryInExactlyOneMinimumCut) {
  const nlohmann::json golden = golden_json("zero_offload_partition.json");
  const DataflowGraph graph = standard_graph();
  const std::vector<Cut> cuts = cheapest(graph);
  ASSERT_EQ(cuts.size(), 3U);
  EXPECT_GT(cuts[0].cpu_bytes, cuts[1].cpu_bytes);
  const Cut& best = cuts[0];
  EXPECT_EQ(best.cpu_bytes.value(), 14U);
  EXPECT_EQ(best.gpu_bytes.value(), golden.at("gpu_bytes_per_parameter_left"));
  EXPECT_EQ(best.up.value(), 2U);
  EXPECT_EQ(best.down.value(), 2U);
}

TEST(Partition, NextCheapestCutCostsSix) {
  const std::vector<Cut> cuts = all_cuts(standard_graph());
  ASSERT_EQ(cuts.size(), 63U);  // six nodes may move, in any combination but none
  EXPECT_EQ(cuts[2].traffic().value(), 4U);
  EXPECT_EQ(cuts[3].traffic().value(), 6U);
}

TEST(Partition, TheNodesOfABlockKeepEveryMinimumCut) {
  const DataflowGraph whole = standard_graph();
  // The super nodes of a block's graph; activations have no bytes here.
  const DataflowGraph fused =
      merge_named(whole, {"update", "momentum_variance", "p32", "float2half"});
  const std::vector<Cut> before = cheapest(whole);
  const std::vector<Cut> after = cheapest(fused);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i].traffic(), after[i].traffic());
    EXPECT_EQ(before[i].cpu_bytes, after[i].cpu_bytes);
  }
}

TEST(Partition, UnfusedGraphHasTheSameMinimum) {
  // Activations have no bytes per parameter; any positive amount leaves them beside FWD-BWD.
  const std::vector<Cut> cuts = cheapest(unfused_graph({.activation_bytes = Bytes{7}}));
  ASSERT_EQ(cuts.size(), 3U);
  EXPECT_EQ(cuts[0].traffic().value(), 4U);
  EXPECT_EQ(cuts[0].cpu_bytes.value(), 14U);
}

TEST(Partition, RefusesGraphsOfTooManyNodes) {
  DataflowGraph many;
  for (int i = 0; i < 21; ++i) many.nodes.push_back({"n", Work::none, Bytes{1}, {"n"}});
  EXPECT_THROW((void)all_cuts(many), Error);
  many.nodes[0].work = Work::model_times_batch;
  EXPECT_EQ(all_cuts(many).size(), (1U << 20) - 1);
  many.nodes.assign(65, {"n", Work::model_times_batch, Bytes{1}, {"n"}});
  EXPECT_THROW((void)all_cuts(many), Error);
  EXPECT_TRUE(all_cuts(DataflowGraph{}).empty());
}

DataflowGraph random_graph(std::mt19937_64& random, std::size_t count) {
  DataflowGraph graph;
  const auto below = [&random](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = "n" + std::to_string(i);
    const Work work = i == 0 || below(8) == 0 ? Work::model_times_batch : Work::none;
    graph.nodes.push_back({name, work, Bytes{below(5)}, {name}});
    if (i > 0)
      graph.edges.push_back({below(i), static_cast<std::uint32_t>(i), Bytes{1 + below(4)}});
  }
  graph.nodes.back().work = Work::none;
  for (std::size_t i = 0; i < 2 * count; ++i) {
    const DataflowEdge edge{below(count), below(count), Bytes{1 + below(4)}};
    const bool parallel = std::any_of(graph.edges.begin(), graph.edges.end(), [&](const auto& old) {
      return old.source == edge.source && old.target == edge.target;
    });
    if (edge.source != edge.target && !parallel) graph.edges.push_back(edge);
  }
  return graph;
}

/// What the sides of a mask share and hold, edge by edge and node by node.
std::tuple<std::uint64_t, std::uint64_t, NodeMask> ranked(const DataflowGraph& graph,
                                                          NodeMask mask) {
  std::uint64_t moved = 0;
  std::uint64_t left = 0;
  for (const DataflowEdge& edge : graph.edges) {
    if ((mask >> edge.source & 1U) != (mask >> edge.target & 1U)) moved += edge.bytes.value();
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if ((mask >> i & 1U) == 0) left += graph.nodes[i].bytes.value();
  }
  return {moved, left, mask};
}

TEST(PartitionProperty, RanksEverySubsetThatKeepsBatchWorkOnTheGpu) {
  std::mt19937_64 random(property_seed());
  for (int trial = 0; trial < 300; ++trial) {
    const DataflowGraph graph = random_graph(random, 2 + random() % 9);
    SCOPED_TRACE(trial);
    std::vector<std::tuple<std::uint64_t, std::uint64_t, NodeMask>> expected;
    for (NodeMask mask = 1; mask < NodeMask{1} << graph.nodes.size(); ++mask) {
      bool allowed = true;
      for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
        allowed &= (mask >> i & 1U) == 0 || graph.nodes[i].work != Work::model_times_batch;
      }
      if (allowed) expected.push_back(ranked(graph, mask));
    }
    std::sort(expected.begin(), expected.end());
    std::vector<std::tuple<std::uint64_t, std::uint64_t, NodeMask>> found;
    for (const Cut& cut : all_cuts(graph)) {
      found.emplace_back(cut.traffic().value(), cut.gpu_bytes.value(), cut.cpu);
    }
    ASSERT_EQ(found, expected);
  }
}

}  // namespace
}  // namespace spillway::plan::partition_test
