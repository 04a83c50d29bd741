#include "runtime/plan/partition.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

constexpr std::size_t kMostNodes = 64;
constexpr std::size_t kMostFreeNodes = 20;

constexpr NodeMask bit(std::size_t node) { return NodeMask{1} << node; }

NodeMask everything(std::size_t count) {
  return count == kMostNodes ? ~NodeMask{0} : bit(count) - 1;
}

NodeMask pinned_to_gpu(const DataflowGraph& graph) {
  check(!graph.nodes.empty() && graph.nodes.size() <= kMostNodes, ErrorCode::invalid_argument,
        "a partition needs a graph of 1 to 64 nodes");
  NodeMask pinned = 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].work == Work::model_times_batch) pinned |= bit(i);
  }
  return pinned;
}

bool ranks_before(const Cut& a, const Cut& b) {
  return std::make_tuple(a.traffic(), b.cpu_bytes, a.cpu) <
         std::make_tuple(b.traffic(), a.cpu_bytes, b.cpu);
}

/// Undirected capacities, and the maximum flow between two sets of nodes.
class FlowNetwork {
 public:
  explicit FlowNetwork(const DataflowGraph& graph)
      : count_(graph.nodes.size()), capacity_(count_ * count_, 0) {
    for (const DataflowEdge& edge : graph.edges) {
      capacity_[edge.source * count_ + edge.target] += edge.bytes.value();
      capacity_[edge.target * count_ + edge.source] += edge.bytes.value();
    }
  }

  /// Traffic of the cheapest cut with `gpu` and `cpu` on their sides; 0 if either is empty.
  /// Shortest augmenting paths (Edmonds and Karp).
  [[nodiscard]] std::uint64_t least_cut(NodeMask gpu, NodeMask cpu) const {
    std::vector<std::uint64_t> residual = capacity_;
    std::uint64_t flow = 0;
    for (;;) {
      const auto [end, parent] = shortest_path(residual, gpu, cpu);
      if (end == count_) return flow;
      std::uint64_t width = std::numeric_limits<std::uint64_t>::max();
      for (std::size_t node = end; parent[node] != node; node = parent[node]) {
        width = std::min(width, residual[parent[node] * count_ + node]);
      }
      for (std::size_t node = end; parent[node] != node; node = parent[node]) {
        residual[parent[node] * count_ + node] -= width;
        residual[node * count_ + parent[node]] += width;
      }
      flow += width;
    }
  }

 private:
  struct Path {
    std::size_t end;                  ///< a node of the sink set; `count_` if there is no path
    std::vector<std::size_t> parent;  ///< of a source node: itself
  };

  [[nodiscard]] Path shortest_path(const std::vector<std::uint64_t>& residual, NodeMask gpu,
                                   NodeMask cpu) const {
    std::vector<std::size_t> parent(count_, count_);
    std::vector<std::size_t> queue;
    for (std::size_t node = 0; node < count_; ++node) {
      if ((gpu & bit(node)) == 0) continue;
      parent[node] = node;
      queue.push_back(node);
    }
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const std::size_t node = queue[head];
      if ((cpu & bit(node)) != 0) return {node, std::move(parent)};
      for (std::size_t next = 0; next < count_; ++next) {
        if (parent[next] != count_ || residual[node * count_ + next] == 0) continue;
        parent[next] = node;
        queue.push_back(next);
      }
    }
    return {count_, std::move(parent)};
  }

  std::size_t count_;
  std::vector<std::uint64_t> capacity_;  ///< count_ x count_, symmetric
};

/// Depth-first assignment of the nodes that may move. `hopeless(gpu, cpu)` prunes a partial
/// assignment; `found(cpu)` receives a complete one.
struct Assignment {
  NodeMask all = 0;
  std::function<bool(NodeMask gpu, NodeMask cpu)> hopeless;
  std::function<void(NodeMask cpu)> found;

  void complete(NodeMask gpu, NodeMask cpu) const {
    if (hopeless(gpu, cpu)) return;
    const NodeMask open = all & ~(gpu | cpu);
    if (open == 0) {
      found(cpu);
      return;
    }
    const NodeMask next = open & (~open + 1);
    // The CPU first: of two cuts of equal traffic that one saves more, so it prunes earlier.
    complete(gpu, cpu | next);
    complete(gpu | next, cpu);
  }

  /// Every assignment with something on the CPU, each once: by the first node that is there.
  void complete_all(NodeMask pinned) const {
    NodeMask gpu = pinned;
    for (NodeMask open = all & ~pinned; open != 0; open &= open - 1) {
      const NodeMask first = open & (~open + 1);
      complete(gpu, first);
      gpu |= first;
    }
  }
};

void check_connected(const DataflowGraph& graph, const FlowNetwork& network) {
  for (std::size_t i = 1; i < graph.nodes.size(); ++i) {
    // Free edges and islands would make the number of minimum cuts exponential.
    check(
        network.least_cut(bit(0), bit(i)) > 0, ErrorCode::invalid_argument,
        fmt::format("node \"{}\" has no edge with bytes that leads to \"{}\"; fuse it or leave it "
                    "out of the graph",
                    graph.nodes[i].name, graph.nodes[0].name));
  }
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
  const NodeMask free = everything(graph.nodes.size()) & ~pinned_to_gpu(graph);
  check(static_cast<std::size_t>(std::popcount(free)) <= kMostFreeNodes,
        ErrorCode::invalid_argument,
        "all_cuts tries every subset, of at most 20 nodes; use minimum_cuts");
  std::vector<Cut> cuts;
  for (NodeMask cpu = free; cpu != 0; cpu = (cpu - 1) & free) {
    cuts.push_back(evaluate_cut(graph, cpu));
  }
  std::sort(cuts.begin(), cuts.end(), ranks_before);
  return cuts;
}

Bytes minimum_cut_bytes(const DataflowGraph& graph) {
  const NodeMask pinned = pinned_to_gpu(graph);
  const FlowNetwork network(graph);
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (NodeMask open = everything(graph.nodes.size()) & ~pinned; open != 0; open &= open - 1) {
    least = std::min(least, network.least_cut(pinned, open & (~open + 1)));
  }
  check(least != std::numeric_limits<std::uint64_t>::max(), ErrorCode::invalid_argument,
        "every node must stay on the GPU: there is nothing to cut");
  return Bytes{least};
}

std::vector<Cut> minimum_cuts(const DataflowGraph& graph) {
  const NodeMask pinned = pinned_to_gpu(graph);
  const FlowNetwork network(graph);
  check_connected(graph, network);
  const std::uint64_t least = minimum_cut_bytes(graph).value();
  std::vector<Cut> cuts;
  const Assignment search{
      .all = everything(graph.nodes.size()),
      .hopeless = [&](NodeMask gpu, NodeMask cpu) { return network.least_cut(gpu, cpu) > least; },
      .found = [&](NodeMask cpu) { cuts.push_back(evaluate_cut(graph, cpu)); }};
  search.complete_all(pinned);
  std::sort(cuts.begin(), cuts.end(), ranks_before);
  return cuts;
}

DataflowGraph super_nodes(const DataflowGraph& graph) {
  return fuse_inseparable(graph, minimum_cut_bytes(graph));
}

Cut partition(const DataflowGraph& graph, const PartitionLimits& limits) {
  const NodeMask pinned = pinned_to_gpu(graph);
  const Cut whole = evaluate_cut(graph, 0);
  if (limits.may_stay_whole && whole.gpu_bytes <= limits.gpu) return whole;

  const FlowNetwork network(graph);
  const auto held = [&](NodeMask nodes) { return evaluate_cut(graph, nodes).cpu_bytes; };
  std::vector<Cut> best;  // empty or one
  const Assignment search{.all = everything(graph.nodes.size()),
                          .hopeless =
                              [&](NodeMask gpu, NodeMask cpu) {
                                if (held(gpu) > limits.gpu || held(cpu) > limits.cpu) return true;
                                return !best.empty() &&
                                       network.least_cut(gpu, cpu) > best[0].traffic().value();
                              },
                          .found =
                              [&](NodeMask cpu) {
                                const Cut cut = evaluate_cut(graph, cpu);
                                if (best.empty() || ranks_before(cut, best[0])) best.assign(1, cut);
                              }};
  search.complete_all(pinned);
  check(!best.empty(), ErrorCode::does_not_fit,
        fmt::format(
            "no partition fits: the data takes {} in all and there is room for {} on the GPU "
            "and {} on the CPU",
            format_bytes(whole.gpu_bytes), format_bytes(limits.gpu), format_bytes(limits.cpu)));
  return best[0];
}

std::string to_text(const DataflowGraph& graph, const Cut& cut) {
  std::string text =
      fmt::format("cut {} B ({} up, {} down), {} B saved, {} B left:", cut.traffic().value(),
                  cut.up.value(), cut.down.value(), cut.cpu_bytes.value(), cut.gpu_bytes.value());
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    if (cut.on_cpu(i)) text += " " + graph.nodes[i].name;
  }
  return text;
}

}  // namespace spillway::plan
