// WorkerNode: the update threads of one memory node, and where they may run.
#pragma once

#include <cstddef>
#include <vector>

#include "cpu_adam/worker_pool.hpp"
#include "runtime/base/topology.hpp"

namespace spillway::cpu_adam::detail {

struct WorkerNode {
  std::size_t threads = 0;
  /// Thread k may run on set k modulo their number; none: wherever the system likes.
  std::vector<std::vector<ProcessorIndex>> places;
};

/// Spreads `threads` over the memory nodes in proportion to their usable cores, so that each node's
/// bandwidth is used. Nodes without threads are left out. At least one node.
[[nodiscard]] std::vector<WorkerNode> spread_over_nodes(const Topology& topology,
                                                        std::size_t threads, Binding binding);

}  // namespace spillway::cpu_adam::detail
