// The seven nodes of ZeRO-Offload's figure, merged from the product's unfused graph.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "runtime/plan/placement/dataflow_graph.hpp"

namespace spillway::plan {

inline DataflowGraph merge_named(const DataflowGraph& graph,
                                 std::initializer_list<std::string_view> names) {
  std::vector<std::uint32_t> members;
  for (const std::string_view name : names) members.push_back(graph.find(name).value());
  return merge_nodes(graph, members);
}

inline DataflowGraph standard_graph(const DataflowOptions& options = {}) {
  const DataflowGraph passes = merge_named(unfused_graph(options), {"fwd", "activations", "bwd"});
  return merge_named(passes, {"momentum", "variance"});
}

}  // namespace spillway::plan
