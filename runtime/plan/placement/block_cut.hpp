// The cut of a block: where each data node of its dataflow graph waits between the ops that use it,
// and which cuts a step can run. An edge of the graph that a cut severs is a copy over the link;
// a data node is buffers of its tier. Pure values, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

struct BlockCut {
  /// device: resident; host: every visit streams them; nvme: likewise, where another framework runs
  /// the passes, and what is frozen of the block is read from the disk for each.
  Tier parameters = Tier::host;
  /// Tier in which gradients wait for the update and rounds are summed. If it is the device and the
  /// state is not, only the sum of all rounds crosses the link.
  Tier gradients = Tier::host;
  Tier state = Tier::host;      ///< of master, m and v; on the device, that is what updates them
  std::optional<Tier> saved{};  ///< of saved_activations.hpp; none: they are recomputed
  Tier output = Tier::device;   ///< of what the next block reads, boundaries.hpp; not of the head

  [[nodiscard]] bool resident() const { return parameters == Tier::device; }
  [[nodiscard]] Lane updated_by() const { return state == Tier::device ? Lane::gpu : Lane::cpu; }
  bool operator==(const BlockCut&) const = default;
};

struct Cut;
struct DataflowGraph;
struct Placement;

/// Whether the block's forward runs again ahead of its backward.
[[nodiscard]] bool is_recomputed(const Workload& workload, const Placement& placement,
                                 std::uint32_t block);

/// Returns the block's graph in one step of the workload: fwd_bwd, p16, activations, output, g16
/// and update_float2half, which holds the state. What the block's layer recomputes reads the
/// parameters again where the layer is in tiles; so much of the graph depends on the placement.
[[nodiscard]] DataflowGraph block_graph(const Workload& workload, const Placement& placement,
                                        std::uint32_t block);

/// Returns the nodes that the cut puts off the device, with what crosses the link.
[[nodiscard]] Cut evaluate_cut(const DataflowGraph& graph, const BlockCut& cut);

/// Whether the device may add up gradients that the host updates: those of several rounds, of one
/// replica.
[[nodiscard]] bool device_may_sum(const Workload& workload);

/// Whether a step has the ops that the cut needs.
[[nodiscard]] bool is_admissible(const Workload& workload, const BlockCut& cut);

/// Returns all cuts of the graph that a step can run, on every tier, from the one that moves least
/// over the link to the one that moves most; of equals the one that saves the most device memory
/// comes first. The graph may be `block_graph`'s or any other that is merged from `unfused_graph`.
[[nodiscard]] std::vector<BlockCut> admissible_cuts(const Workload& workload,
                                                    const DataflowGraph& graph);

/// Returns "parameters host, gradients host, state nvme, saved recomputed, output device", without
/// saved activations or output where the graph has none.
[[nodiscard]] std::string to_text(const DataflowGraph& graph, const BlockCut& cut);

}  // namespace spillway::plan
