#include "runtime/plan/partition.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <set>
#include <string>

#include "runtime/base/error.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan {
namespace {

std::set<std::string> cpu_names(const DataflowGraph& graph, const Cut& cut) {
  std::set<std::string> found;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    if (cut.on_cpu(i)) found.insert(graph.nodes[i].name);
  }
  return found;
}

std::vector<NodeMask> masks(const std::vector<Cut>& cuts) {
  std::vector<NodeMask> found;
  for (const Cut& cut : cuts) found.push_back(cut.cpu);
  return found;
}

TEST(Partition, FindsTheThreeMinimumCutsOfZeroOffload) {
  const nlohmann::json golden = golden_json("zero_offload_partition.json");
  const DataflowGraph graph = standard_graph();
  const std::uint64_t least = golden.at("minimum_cut_bytes_per_parameter");
  EXPECT_EQ(minimum_cut_bytes(graph).value(), least);

  std::set<std::pair<std::set<std::string>, std::uint64_t>> expected;
  for (const auto& cut : golden.at("minimum_cuts_cpu_side")) {
    expected.emplace(cut.at("cpu").get<std::set<std::string>>(),
                     cut.at("gpu_bytes_saved").get<std::uint64_t>());
  }
  ASSERT_EQ(expected.size(), 3U);
  std::set<std::pair<std::set<std::string>, std::uint64_t>> found;
  for (const Cut& cut : minimum_cuts(graph)) {
    EXPECT_EQ(cut.traffic().value(), least);
    found.emplace(cpu_names(graph, cut), cut.cpu_bytes.value());
  }
  EXPECT_EQ(found, expected);
}

TEST(Partition, SavesMostMemoryInExactlyOneMinimumCut) {
  const nlohmann::json golden = golden_json("zero_offload_partition.json");
  const DataflowGraph graph = standard_graph();
  const std::vector<Cut> cuts = minimum_cuts(graph);
  ASSERT_EQ(cuts.size(), 3U);
  EXPECT_GT(cuts[0].cpu_bytes, cuts[1].cpu_bytes);
  const Cut best = partition(graph);
  EXPECT_EQ(best.cpu, cuts[0].cpu);
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

TEST(Partition, SuperNodesKeepEveryMinimumCut) {
  const DataflowGraph whole = standard_graph();
  const DataflowGraph fused = super_nodes(whole);
  const std::vector<Cut> before = minimum_cuts(whole);
  const std::vector<Cut> after = minimum_cuts(fused);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i].traffic(), after[i].traffic());
    EXPECT_EQ(before[i].cpu_bytes, after[i].cpu_bytes);
  }
}

TEST(Partition, UnfusedGraphHasTheSameMinimum) {
  // Activations have no bytes per parameter; any positive amount leaves them beside FWD-BWD.
  const DataflowGraph graph = unfused_graph({.activation_bytes = Bytes{7}});
  EXPECT_EQ(minimum_cut_bytes(graph).value(), 4U);
  EXPECT_EQ(minimum_cuts(graph).size(), 3U);
  EXPECT_EQ(partition(graph).cpu_bytes.value(), 14U);
}

TEST(Partition, RespectsTheRoomOnBothSides) {
  const DataflowGraph graph = standard_graph();
  // One byte less than p16 needs: everything goes, and parameters cost their way up twice.
  const Cut streamed = partition(graph, {.gpu = Bytes{1}});
  EXPECT_EQ(streamed.cpu_bytes.value(), 16U);
  EXPECT_EQ(streamed.traffic().value(), 6U);
  EXPECT_EQ(streamed.up.value(), 4U);
  // The host takes 12: the gradient stays, at the same traffic.
  const Cut twelve = partition(graph, {.cpu = Bytes{13}});
  EXPECT_EQ(twelve.cpu_bytes.value(), 12U);
  EXPECT_EQ(twelve.traffic().value(), 4U);
  // Nothing must leave if all of it fits.
  EXPECT_EQ(partition(graph, {.gpu = Bytes{16}, .may_stay_whole = true}).cpu, 0U);
  EXPECT_EQ(partition(graph, {.gpu = Bytes{15}, .may_stay_whole = true}).traffic().value(), 4U);
}

TEST(Partition, NamesBothTotalsWhenNothingFits) {
  try {
    (void)partition(standard_graph(), {.gpu = Bytes{3}, .cpu = Bytes{11}});
    FAIL() << "16 bytes do not fit into 14";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    EXPECT_THAT(error.what(), testing::HasSubstr("16 B"));
    EXPECT_THAT(error.what(), testing::HasSubstr("3 B on the GPU"));
    EXPECT_THAT(error.what(), testing::HasSubstr("11 B on the CPU"));
  }
}

TEST(Partition, RefusesGraphsThatItCannotCut) {
  EXPECT_THROW((void)partition(DataflowGraph{}), Error);
  DataflowGraph pinned;
  pinned.nodes = {{"fwd_bwd", Work::model_times_batch, Bytes{0}, {"fwd_bwd"}}};
  EXPECT_THROW((void)minimum_cut_bytes(pinned), Error);
  DataflowGraph island = standard_graph();
  island.nodes.push_back({"island", Work::none, Bytes{1}, {"island"}});
  EXPECT_THROW((void)minimum_cuts(island), Error);
  EXPECT_THROW((void)minimum_cuts(unfused_graph()), Error);  // activations: edges of no bytes
  DataflowGraph many;
  for (int i = 0; i < 22; ++i) many.nodes.push_back({"n", Work::none, Bytes{1}, {"n"}});
  EXPECT_THROW((void)all_cuts(many), Error);
  many.nodes.resize(65);
  EXPECT_THROW((void)minimum_cut_bytes(many), Error);
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

TEST(PartitionProperty, AgreesWithEverySubsetOfRandomGraphs) {
  std::mt19937_64 random(property_seed());
  for (int trial = 0; trial < 300; ++trial) {
    const DataflowGraph graph = random_graph(random, 2 + random() % 9);
    SCOPED_TRACE("trial " + std::to_string(trial) + "\n" + to_text(graph));
    std::vector<Cut> cuts = all_cuts(graph);

    const PartitionLimits limits{.gpu = Bytes{random() % 20}, .cpu = Bytes{random() % 20}};
    const auto fits = std::find_if(cuts.begin(), cuts.end(), [&](const Cut& cut) {
      return cut.gpu_bytes <= limits.gpu && cut.cpu_bytes <= limits.cpu;
    });
    if (fits == cuts.end()) {
      EXPECT_THROW((void)partition(graph, limits), Error);
    } else {
      EXPECT_EQ(partition(graph, limits).cpu, fits->cpu);
    }

    ASSERT_EQ(minimum_cut_bytes(graph), cuts[0].traffic());
    std::erase_if(cuts, [&](const Cut& cut) { return cut.traffic() > cuts[0].traffic(); });
    ASSERT_EQ(masks(minimum_cuts(graph)), masks(cuts));
    ASSERT_EQ(partition(graph).cpu, cuts[0].cpu);
    // Rule 3 never loses a minimum cut: the same number, the same savings.
    const std::vector<Cut> fused = minimum_cuts(super_nodes(graph));
    ASSERT_EQ(fused.size(), cuts.size());
    for (std::size_t i = 0; i < cuts.size(); ++i) EXPECT_EQ(fused[i].cpu_bytes, cuts[i].cpu_bytes);
  }
}

TEST(Partition, StaysExactAndQuickOnGraphsTooLargeForSubsets) {
  // A ring of 40 nodes: every pair of edges is a minimum cut, 40*39/2 of them.
  DataflowGraph ring;
  for (std::uint32_t i = 0; i < 40; ++i) {
    const std::string name = "n" + std::to_string(i);
    ring.nodes.push_back({name, i == 0 ? Work::model_times_batch : Work::none, Bytes{1}, {name}});
    ring.edges.push_back({i, (i + 1) % 40, Bytes{3}});
  }
  EXPECT_EQ(minimum_cut_bytes(ring).value(), 6U);
  EXPECT_EQ(minimum_cuts(ring).size(), 40U * 39 / 2);
  EXPECT_EQ(partition(ring).cpu_bytes.value(), 39U);
  EXPECT_EQ(partition(ring, {.cpu = Bytes{10}}).cpu_bytes.value(), 10U);
}

TEST(Partition, PrintsAsTheGoldenFile) {
  const DataflowGraph graph = standard_graph();
  std::string text = "best " + to_text(graph, partition(graph)) + "\n";
  for (const Cut& cut : minimum_cuts(graph)) text += to_text(graph, cut) + "\n";
  text += "next " + to_text(graph, all_cuts(graph)[3]) + "\n";
  EXPECT_EQ(text, read_golden("partition.txt"));
}

}  // namespace
}  // namespace spillway::plan
