#include "runtime/plan/placement/dataflow_graph.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::plan {
namespace {

using NodeSet = std::vector<std::uint32_t>;

DataflowNode merged_node(const DataflowGraph& graph, const NodeSet& members) {
  DataflowNode merged;
  const bool computes = std::any_of(members.begin(), members.end(), [&](std::uint32_t member) {
    return graph.nodes[member].work != Work::none;
  });
  for (const std::uint32_t member : members) {
    const DataflowNode& node = graph.nodes[member];
    if (computes == (node.work != Work::none)) {
      merged.name += merged.name.empty() ? node.name : "_" + node.name;
    }
    merged.work = std::max(merged.work, node.work);
    merged.bytes += node.bytes;
    merged.members.insert(merged.members.end(), node.members.begin(), node.members.end());
  }
  return merged;
}

}  // namespace

std::optional<std::uint32_t> DataflowGraph::find(std::string_view name) const {
  for (std::uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].name == name) return i;
  }
  return std::nullopt;
}

DataflowGraph unfused_graph(const DataflowOptions& options) {
  const std::uint64_t count = options.parameters.value();
  const Bytes narrow{count * size_of(options.compute)};
  const Bytes master{count * 4};
  const Bytes moment = moment_bytes(options.format, options.parameters);
  const std::uint64_t rounds = options.rounds;
  const std::uint64_t gradients = rounds * options.gradients;
  const Bytes waiting = gradients > 1 ? Bytes{count * size_of(DType::fp32)} : narrow;

  DataflowGraph graph;
  const auto add = [&graph](std::string_view name, Work work, Bytes bytes) {
    graph.nodes.push_back({std::string(name), work, bytes, {std::string(name)}});
    return static_cast<std::uint32_t>(graph.nodes.size() - 1);
  };
  const auto edge = [&graph](std::uint32_t source, std::uint32_t target, Bytes bytes) {
    graph.edges.push_back({source, target, bytes});
  };
  const auto p16 = add(node::kParameters, Work::none, narrow);
  const auto fwd = add(node::kForward, Work::model_times_batch, Bytes{0});
  const auto kept = add(node::kActivations, Work::none, options.activation_bytes);
  const auto bwd = add(node::kBackward, Work::model_times_batch, Bytes{0});
  const auto g16 = add(node::kGradients, Work::none, waiting);
  const auto update = add(node::kUpdate, Work::model, Bytes{0});
  const auto momentum = add(node::kMomentum, Work::none, moment);
  const auto variance = add(node::kVariance, Work::none, moment);
  const auto p32 = add(node::kMaster, Work::none, master);
  const auto float2half = add(node::kRounding, Work::model, Bytes{0});
  edge(p16, fwd, narrow * (rounds * options.forward_reads));
  edge(p16, bwd, narrow * (rounds * options.backward_reads));
  edge(fwd, kept, options.activation_bytes * rounds);
  edge(kept, bwd, options.activation_bytes * rounds);
  edge(bwd, g16, narrow * gradients);
  edge(g16, update, waiting);
  edge(momentum, update, moment);
  edge(update, momentum, moment);
  edge(variance, update, moment);
  edge(update, variance, moment);
  edge(p32, update, master);
  edge(update, p32, master);
  edge(p32, float2half, master);
  edge(float2half, p16, narrow);
  if (options.output_bytes == Bytes{}) return graph;
  const auto output = add(node::kOutput, Work::none, options.output_bytes);
  edge(fwd, output, options.output_bytes * rounds);
  edge(output, bwd, options.output_bytes * rounds);
  return graph;
}

DataflowGraph merge_nodes(const DataflowGraph& graph, std::span<const std::uint32_t> members) {
  NodeSet sorted(members.begin(), members.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  check(sorted.empty() || sorted.back() < graph.nodes.size(), ErrorCode::invalid_argument,
        "merge_nodes: a member is not a node of the graph");
  if (sorted.size() < 2) return graph;

  DataflowGraph merged;
  NodeSet new_index(graph.nodes.size());
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    const bool member = std::binary_search(sorted.begin(), sorted.end(), i);
    if (member && i != sorted.front()) {
      new_index[i] = new_index[sorted.front()];
      continue;
    }
    new_index[i] = static_cast<std::uint32_t>(merged.nodes.size());
    merged.nodes.push_back(member ? merged_node(graph, sorted) : graph.nodes[i]);
  }
  for (const DataflowEdge& edge : graph.edges) {
    const DataflowEdge moved{new_index[edge.source], new_index[edge.target], edge.bytes};
    if (moved.source == moved.target) continue;
    const auto parallel =
        std::find_if(merged.edges.begin(), merged.edges.end(), [&](const DataflowEdge& other) {
          return other.source == moved.source && other.target == moved.target;
        });
    if (parallel == merged.edges.end()) {
      merged.edges.push_back(moved);
    } else {
      parallel->bytes += moved.bytes;
    }
  }
  return merged;
}

}  // namespace spillway::plan
