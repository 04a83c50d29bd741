// What it costs to put nodes of a dataflow graph on the CPU: the bytes over its edges.
//
// Nodes whose work grows with model times batch stay on the GPU (ZeRO-Offload, section 3.2: a CPU
// is hundreds of times too slow). Every other node may be on either side. The graph of a block has
// few nodes, so every subset of them is tried. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/units.hpp"
#include "runtime/plan/placement/dataflow_graph.hpp"

namespace spillway::plan {

/// Node i is on the CPU if bit i is set.
using NodeMask = std::uint64_t;

/// A division of the nodes and what it costs.
struct Cut {
  NodeMask cpu = 0;
  Bytes up{};         ///< over edges from the CPU to the GPU
  Bytes down{};       ///< over edges from the GPU to the CPU
  Bytes gpu_bytes{};  ///< of data that stays on the GPU
  Bytes cpu_bytes{};  ///< of data on the CPU: the GPU memory saved

  [[nodiscard]] Bytes traffic() const { return up + down; }
  [[nodiscard]] bool on_cpu(std::uint32_t node) const { return ((cpu >> node) & 1U) != 0; }
};

/// Returns the price of putting `cpu` on the CPU. Does not check whether that is allowed.
[[nodiscard]] Cut evaluate_cut(const DataflowGraph& graph, NodeMask cpu);

/// Returns every allowed cut with at least one node on the CPU, cheapest first, then most saved,
/// then by mask. Throws `Error{invalid_argument}` above 20 nodes that may move.
[[nodiscard]] std::vector<Cut> all_cuts(const DataflowGraph& graph);

}  // namespace spillway::plan
