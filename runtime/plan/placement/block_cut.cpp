#include "runtime/plan/placement/block_cut.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/dataflow_graph.hpp"
#include "runtime/plan/placement/partition.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::plan {
namespace {

/// Returns where a node of the unfused graph is. The update runs where its state is, and rounds
/// what it writes.
Tier tier_of_node(std::string_view name, const BlockCut& cut) {
  if (std::ranges::count(node::kPasses, name) > 0) return Tier::device;
  if (name == node::kParameters) return cut.parameters;
  if (name == node::kGradients) return cut.gradients;
  if (name == node::kActivations) return cut.saved.value_or(Tier::device);
  if (name == node::kOutput) return cut.output;
  SPILLWAY_ASSERT(std::ranges::count(node::kUpdated, name) > 0);
  return cut.state;
}

NodeMask off_device(const DataflowGraph& graph, const BlockCut& cut) {
  NodeMask mask = 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Tier tier = tier_of_node(graph.nodes[i].members.front(), cut);
    if (tier != Tier::device) mask |= NodeMask{1} << i;
  }
  return mask;
}

/// Returns the cut with the nodes of the mask on the host.
BlockCut cut_of(const DataflowGraph& graph, NodeMask mask) {
  const auto tier = [&](std::string_view name) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (std::ranges::count(graph.nodes[i].members, name) > 0) {
        return (mask >> i & 1U) != 0 ? Tier::host : Tier::device;
      }
    }
    return Tier::device;
  };
  return {.parameters = tier(node::kParameters),
          .gradients = tier(node::kGradients),
          .state = tier(node::kUpdate),
          .saved = tier(node::kActivations),
          .output = tier(node::kOutput)};
}

DataflowGraph merge_named(const DataflowGraph& graph, std::span<const std::string_view> names) {
  std::vector<std::uint32_t> members;
  for (const std::string_view name : names) members.push_back(graph.find(name).value());
  return merge_nodes(graph, members);
}

/// What is off the device may be on the host or on disk. What stays beside FWD-BWD and has no home
/// is made again.
void add_tiers(const Workload& workload, const BlockCut& cut, std::vector<BlockCut>& list) {
  using Homes = std::vector<std::optional<Tier>>;
  const Homes saved =
      cut.saved == Tier::host ? Homes{Tier::host, Tier::nvme} : Homes{Tier::device, std::nullopt};
  const auto homes = [](Tier tier) {
    return tier == Tier::host ? Homes{Tier::host, Tier::nvme} : Homes{tier};
  };
  for (const auto& state : homes(cut.state)) {
    for (const auto& output : homes(cut.output)) {
      for (const auto& kept : saved) {
        BlockCut each = cut;
        each.state = *state;
        each.output = *output;
        each.saved = kept;
        if (is_admissible(workload, each)) list.push_back(each);
      }
    }
  }
}

}  // namespace

bool is_recomputed(const Workload& workload, const Placement& placement, std::uint32_t block) {
  const std::uint32_t layer = workload.layer_of(block);
  if (layer == 0 || layer == workload.head_layer()) return false;
  if (workload.operator_tiles && !workload.blocks[block].feeds_backward) return false;
  return !placement.blocks[workload.first_block(layer)].saved;
}

DataflowGraph block_graph(const Workload& w, const Placement& placement, std::uint32_t block) {
  const std::uint32_t layer = w.layer_of(block);
  const bool head = layer == w.head_layer();
  const std::uint64_t visits = placement.order == WorkOrder::layer_major ? 1 : w.micro_batches;
  const bool again = w.operator_tiles && is_recomputed(w, placement, block);
  // A loss on a whole head makes both its passes in one op. An embedding's backward reads nothing.
  const bool uses_loss = w.loss_blocks().contains(block) || w.tied_blocks().contains(block);
  const std::uint64_t of_loss = uses_loss ? (w.operator_tiles ? 2 : 1) : 0;
  const bool in_layer = layer > 0 && !head;
  const bool waits = w.output_waits(layer) && w.first_block(layer) == block;
  const Bytes one = head ? Bytes{} : w.blocks[block].saved_bytes;
  const DataflowGraph graph = unfused_graph(
      {.parameters = w.shard_elements(block),
       .format = placement.format,
       .compute = w.compute,
       .rounds = w.rounds,
       .gradients = w.gradients_of_round(),
       .forward_reads = visits * (head    ? 0
                                  : again ? 2
                                          : 1),
       .backward_reads = visits * (in_layer ? 1 : of_loss),
       .activation_bytes = one * std::uint64_t{w.micro_batches},
       .output_bytes = waits ? w.boundary_bytes * std::uint64_t{w.micro_batches} : Bytes{}});
  // The activations stay apart: memory may force them off the device.
  return merge_named(merge_named(graph, node::kPasses), node::kUpdated);
}

Cut evaluate_cut(const DataflowGraph& graph, const BlockCut& cut) {
  return evaluate_cut(graph, off_device(graph, cut));
}

bool device_may_sum(const Workload& workload) {
  return workload.rounds > 1 && workload.replicas.count == 1;
}

bool is_admissible(const Workload& workload, const BlockCut& cut) {
  // The device updates parameters where they live, from gradients that are there.
  const bool all_there = cut.resident() && cut.gradients == Tier::device;
  if (cut.state == Tier::device && !all_there) return false;
  const bool sums = cut.gradients == Tier::device && cut.state != Tier::device;
  if (sums && !device_may_sum(workload)) return false;
  // What ranks hold whole is resident; their gradients go to the host.
  if (workload.replicas.count > 1 && cut.gradients == Tier::device) return false;
  if (workload.replicas.count > 1 && !workload.gathers() && !cut.resident()) return false;
  if (cut.parameters == Tier::nvme || cut.gradients == Tier::nvme) return false;
  return !workload.operator_tiles || cut.saved.value_or(Tier::device) == Tier::device;
}

std::vector<BlockCut> admissible_cuts(const Workload& workload, const DataflowGraph& graph) {
  std::vector<Cut> cuts = all_cuts(graph);
  cuts.insert(cuts.begin(), evaluate_cut(graph, NodeMask{0}));
  std::vector<BlockCut> list;
  for (const Cut& each : cuts) {
    const BlockCut cut = cut_of(graph, each.cpu);
    // Another mask would separate what one op keeps together.
    if (off_device(graph, cut) == each.cpu) add_tiers(workload, cut, list);
  }
  return list;
}

std::string to_text(const DataflowGraph& graph, const BlockCut& cut) {
  const auto has = [&](std::string_view name) {
    const auto found = graph.find(name);
    return found && graph.nodes[*found].bytes > Bytes{};
  };
  std::string text = fmt::format("parameters {}, gradients {}, state {}", name_of(cut.parameters),
                                 name_of(cut.gradients), name_of(cut.state));
  if (has(node::kActivations)) {
    text += fmt::format(", saved {}", cut.saved ? name_of(*cut.saved) : "recomputed");
  }
  if (has(node::kOutput)) text += fmt::format(", output {}", name_of(cut.output));
  return text;
}

}  // namespace spillway::plan
