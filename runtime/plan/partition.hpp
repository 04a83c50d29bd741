// Which nodes of a dataflow graph live on the CPU: cheapest traffic first, then most GPU memory
// saved.
//
// Nodes whose work grows with model times batch stay on the GPU. Traffic counts edges in both
// directions, so a cheapest cut is an undirected minimum cut between those nodes and any other; it
// is found by maximum flow, and all of them by depth-first assignment in which every partial
// assignment is kept only if its own maximum flow can still meet the limit: no dead ends, whatever
// the graph, and a connected graph of n nodes has at most n*(n-1)/2 minimum cuts. `all_cuts` is the
// plain twin: it tries every subset. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/units.hpp"
#include "runtime/plan/dataflow_graph.hpp"

namespace spillway::plan {

/// Node i is on the CPU if bit i is set.
using NodeMask = std::uint64_t;

/// Is a division of the nodes and what it costs.
struct Cut {
  NodeMask cpu = 0;
  Bytes up{};         ///< over edges from the CPU to the GPU
  Bytes down{};       ///< over edges from the GPU to the CPU
  Bytes gpu_bytes{};  ///< of data that stays on the GPU
  Bytes cpu_bytes{};  ///< of data on the CPU: the GPU memory saved

  [[nodiscard]] Bytes traffic() const { return up + down; }
  [[nodiscard]] bool on_cpu(std::uint32_t node) const { return ((cpu >> node) & 1U) != 0; }
};

/// Returns the price of putting `cpu` on the CPU. Does not ask whether that is allowed.
[[nodiscard]] Cut evaluate_cut(const DataflowGraph& graph, NodeMask cpu);

/// Returns every allowed cut with at least one node on the CPU, cheapest first, then most saved,
/// then by mask. Throws `Error{invalid_argument}` above 20 nodes that may move.
[[nodiscard]] std::vector<Cut> all_cuts(const DataflowGraph& graph);

/// Returns the traffic of the cheapest cut with at least one node on the CPU.
[[nodiscard]] Bytes minimum_cut_bytes(const DataflowGraph& graph);

/// Returns all cuts of that traffic, in the order of `all_cuts`. At most 64 nodes, connected by
/// edges that are not free; throws `Error{invalid_argument}` otherwise.
[[nodiscard]] std::vector<Cut> minimum_cuts(const DataflowGraph& graph);

/// Returns the graph with everything fused that no minimum cut separates (rule 3 with the best
/// known cut).
[[nodiscard]] DataflowGraph super_nodes(const DataflowGraph& graph);

/// Is the room for data on each side. The default is "as much as there is, and something must leave
/// the GPU".
struct PartitionLimits {
  Bytes gpu{UINT64_MAX};
  Bytes cpu{UINT64_MAX};
  /// If true, the cut with nothing on the CPU competes too. It moves nothing, so it wins if it
  /// fits.
  bool may_stay_whole = false;
};

/// Returns the cut with the least traffic, among those the one that saves the most GPU memory, that
/// respects `limits`. Throws `Error{does_not_fit}` with both totals if none does.
[[nodiscard]] Cut partition(const DataflowGraph& graph, const PartitionLimits& limits = {});

/// Writes "cut 4 B (2 up, 2 down), 14 B saved, 2 B left: g16 update ..." without a line break.
[[nodiscard]] std::string to_text(const DataflowGraph& graph, const Cut& cut);

}  // namespace spillway::plan
