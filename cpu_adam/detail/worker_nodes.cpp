#include "cpu_adam/detail/worker_nodes.hpp"

namespace spillway::cpu_adam::detail {

std::vector<WorkerNode> spread_over_nodes(const Topology& topology, std::size_t threads,
                                          Binding binding) {
  const std::size_t cores = topology.cores.size();
  std::vector<WorkerNode> nodes;
  std::size_t before = 0;
  for (const NumaNode& node : topology.nodes) {
    std::vector<std::vector<ProcessorIndex>> places;
    for (const Core& core : topology.cores) {
      if (core.node == node.index) places.push_back(core.processors);
    }
    const std::size_t after = before + places.size();
    // Differences of a rounded running total, so that the shares add up.
    const std::size_t share = threads * after / cores - threads * before / cores;
    before = after;
    if (share > 0) nodes.push_back({.threads = share, .places = std::move(places)});
  }
  if (nodes.empty() || binding == Binding::none) return {{.threads = threads, .places = {}}};
  for (WorkerNode& node : nodes) {
    if (binding == Binding::core) continue;
    if (nodes.size() == 1) {
      node.places.clear();  // one node: nothing to keep apart
      continue;
    }
    std::vector<ProcessorIndex> all;
    for (const auto& place : node.places) all.insert(all.end(), place.begin(), place.end());
    node.places = {std::move(all)};
  }
  return nodes;
}

}  // namespace spillway::cpu_adam::detail
