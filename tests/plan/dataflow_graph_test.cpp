#include "runtime/plan/placement/dataflow_graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "runtime/base/error.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/standard_graph.hpp"

namespace spillway::plan::dataflow_graph_test {
namespace {

using ::testing::ElementsAre;
using EdgeMap = std::map<std::pair<std::string, std::string>, std::uint64_t>;

EdgeMap edges_by_name(const DataflowGraph& graph) {
  EdgeMap edges;
  for (const DataflowEdge& edge : graph.edges) {
    const auto key = std::pair(graph.nodes[edge.source].name, graph.nodes[edge.target].name);
    EXPECT_FALSE(edges.contains(key)) << "two edges from " << key.first << " to " << key.second;
    edges[key] = edge.bytes.value();
  }
  return edges;
}

std::vector<std::string> names(const DataflowGraph& graph) {
  std::vector<std::string> found;
  for (const DataflowNode& node : graph.nodes) found.push_back(node.name);
  return found;
}

TEST(DataflowGraph, IsGivenUnfused) {
  const DataflowGraph graph = unfused_graph();
  EXPECT_THAT(names(graph), ElementsAre("p16", "fwd", "activations", "bwd", "g16", "update",
                                        "momentum", "variance", "p32", "float2half"));
  Bytes held;
  for (const DataflowNode& node : graph.nodes) held += node.bytes;
  EXPECT_EQ(held.value(), 16U);
  EXPECT_EQ(graph.nodes[graph.find("fwd").value()].work, Work::model_times_batch);
  EXPECT_EQ(graph.nodes[graph.find("update").value()].work, Work::model);
  EXPECT_EQ(graph.find("adam"), std::nullopt);
}

TEST(DataflowGraph, FusesToTheGraphOfZeroOffload) {
  const nlohmann::json golden = golden_json("zero_offload_partition.json");
  const DataflowGraph graph = standard_graph();
  EXPECT_EQ(graph.nodes.size(), golden.at("nodes").size());
  for (const auto& [name, properties] : golden.at("nodes").items()) {
    const auto index = graph.find(name);
    ASSERT_TRUE(index.has_value()) << name;
    const DataflowNode& node = graph.nodes[*index];
    EXPECT_EQ(node.bytes.value(), properties.value("bytes", 0U)) << name;
    const std::string compute = properties.value("compute", "");
    const Work work = compute == "O(M*B)" ? Work::model_times_batch
                      : compute == "O(M)" ? Work::model
                                          : Work::none;
    EXPECT_EQ(node.work, work) << name;
  }
  EdgeMap expected;
  for (const auto& edge : golden.at("edges_bytes_per_parameter")) {
    expected[{edge.at(0), edge.at(1)}] = edge.at(2).get<std::uint64_t>();
  }
  EXPECT_EQ(edges_by_name(graph), expected);
}

TEST(DataflowGraph, ScalesWithParametersFormatComputeAndRounds) {
  const DataflowGraph graph = standard_graph({.parameters = ElementCount{4096},
                                              .format = StateFormat::int8,
                                              .compute = DType::fp32,
                                              .rounds = 3});
  const EdgeMap edges = edges_by_name(graph);
  EXPECT_EQ(edges.at({"p16", "fwd_bwd"}), 2U * 3 * 4 * 4096);
  EXPECT_EQ(edges.at({"fwd_bwd", "g16"}), 3U * 4 * 4096);
  EXPECT_EQ(edges.at({"g16", "update"}), 4U * 4096);
  EXPECT_EQ(edges.at({"momentum_variance", "update"}), 2U * (4096 + 64));
  EXPECT_EQ(edges.at({"update", "p32"}), 4U * 4096);
}

TEST(DataflowGraph, MergesParallelEdgesAndDropsInnerOnes) {
  DataflowGraph graph;
  graph.nodes = {{"a", Work::model, Bytes{0}, {"a"}},
                 {"b", Work::none, Bytes{3}, {"b"}},
                 {"c", Work::model, Bytes{0}, {"c"}},
                 {"d", Work::none, Bytes{5}, {"d"}}};
  graph.edges = {{0, 1, Bytes{1}}, {2, 1, Bytes{2}}, {0, 2, Bytes{4}}, {3, 2, Bytes{8}}};
  const std::vector<std::uint32_t> members{2, 0, 2};
  const DataflowGraph merged = merge_nodes(graph, members);
  EXPECT_THAT(names(merged), ElementsAre("a_c", "b", "d"));
  EXPECT_EQ(edges_by_name(merged), (EdgeMap{{{"a_c", "b"}, 3}, {{"d", "a_c"}, 8}}));
  const std::vector<std::uint32_t> outside{0, 4};
  EXPECT_THROW((void)merge_nodes(graph, outside), Error);
}

}  // namespace
}  // namespace spillway::plan::dataflow_graph_test
