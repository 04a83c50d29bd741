#include "runtime/plan/placement/partition.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

constexpr int kMostFreeNodes = 20;

/// Returns the nodes that may leave the GPU.
NodeMask free_nodes(const DataflowGraph& graph) {
  check(graph.nodes.size() <= 64, ErrorCode::invalid_argument, "a cut is of at most 64 nodes");
  NodeMask free = 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].work != Work::model_times_batch) free |= NodeMask{1} << i;
  }
  check(std::popcount(free) <= kMostFreeNodes, ErrorCode::invalid_argument,
        "all_cuts tries every subset of the nodes that may move, of at most 20");
  return free;
}

bool ranks_before(const Cut& a, const Cut& b) {
  return std::make_tuple(a.traffic(), b.cpu_bytes, a.cpu) <
         std::make_tuple(b.traffic(), a.cpu_bytes, b.cpu);
}

}  // namespace

Cut evaluate_cut(const DataflowGraph& graph, NodeMask cpu) {
  Cut cut{.cpu = cpu};
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    (cut.on_cpu(i) ? cut.cpu_bytes : cut.gpu_bytes) += graph.nodes[i].bytes;
  }
  for (const DataflowEdge& edge : graph.edges) {
    const bool from_cpu = cut.on_cpu(edge.source);
    if (from_cpu == cut.on_cpu(edge.target)) continue;
    (from_cpu ? cut.up : cut.down) += edge.bytes;
  }
  return cut;
}

std::vector<Cut> all_cuts(const DataflowGraph& graph) {
  const NodeMask free = free_nodes(graph);
  std::vector<Cut> cuts;
  for (NodeMask cpu = free; cpu != 0; cpu = (cpu - 1) & free) {
    cuts.push_back(evaluate_cut(graph, cpu));
  }
  std::sort(cuts.begin(), cuts.end(), ranks_before);
  return cuts;
}

}  // namespace spillway::plan
