// The dataflow graph of one mixed-precision Adam step, unfused, and the rules that fuse it.
//
// Nodes are computations (forward, backward, update, float2half) and data (parameters, gradients,
// optimizer state, activations); an edge carries the bytes that a step moves along it when its two
// ends live on different devices. A partition into GPU and CPU is a set of nodes; its price is the
// edges between the sides (ZeRO-Offload, section 3). Pure values: no I/O, any thread.
//
// Nodes that no cheapest cut separates are merged before the graph is cut: FWD and BWD, whose work
// grows with model times batch, and the update with all that only it touches. Merging can lose no
// best partition.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// How the work of a node grows. M is the model size, B the batch size.
enum class Work : std::uint8_t {
  none,               ///< data
  model,              ///< O(M): a CPU can do it
  model_times_batch,  ///< O(M*B): stays on the GPU
};

/// Names of the unfused nodes.
namespace node {
inline constexpr std::string_view kParameters = "p16";
inline constexpr std::string_view kForward = "fwd";
inline constexpr std::string_view kActivations = "activations";
inline constexpr std::string_view kBackward = "bwd";
inline constexpr std::string_view kGradients = "g16";
inline constexpr std::string_view kUpdate = "update";
inline constexpr std::string_view kMomentum = "momentum";
inline constexpr std::string_view kVariance = "variance";
inline constexpr std::string_view kMaster = "p32";
inline constexpr std::string_view kRounding = "float2half";
inline constexpr std::string_view kOutput = "output";
/// Nodes that one op of FWD-BWD keeps together, and those that one of the update does.
inline constexpr std::array kPasses{kForward, kBackward};
inline constexpr std::array kUpdated{kUpdate, kMomentum, kVariance, kMaster, kRounding};
}  // namespace node

struct DataflowNode {
  std::string name{};
  Work work = Work::none;  ///< of a fused node: the largest of its members
  Bytes bytes{};           ///< memory that the data in this node holds
  /// The unfused nodes inside, by name and in graph order; `{name}` for an unfused node.
  std::vector<std::string> members{};
};

struct DataflowEdge {
  std::uint32_t source = 0;
  std::uint32_t target = 0;
  Bytes bytes{};  ///< moved in one step
};

/// At most one edge from a node to another; no edge from a node to itself.
struct DataflowGraph {
  std::vector<DataflowNode> nodes{};
  std::vector<DataflowEdge> edges{};

  /// Returns the index of the node called `name`, if there is one.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const;
};

/// The sums below are over `parameters`, so 1 gives bytes per parameter (int8 scales round up).
struct DataflowOptions {
  ElementCount parameters{1};
  /// Decides the width of momentum and variance. The master is 4 bytes in every format: where it is
  /// kept as 16-bit parameter and remainder, those are its two halves.
  StateFormat format = StateFormat::fp32;
  DType compute = DType::bf16;       ///< width of the nodes p16 and g16
  std::uint32_t rounds = 1;          ///< each yields gradients; all are summed in fp32
  std::uint32_t gradients = 1;       ///< of a round
  std::uint64_t forward_reads = 1;   ///< of the parameters by forward, in a round
  std::uint64_t backward_reads = 1;  ///< ... by backward
  Bytes activation_bytes{};  ///< from forward to backward in a round; 0 for the graph per parameter
  Bytes output_bytes{};      ///< the next block's input, the same; 0: there is no such node
};

/// Returns the graph of all nodes in the order of their names above; the output is left out if it
/// has no bytes.
[[nodiscard]] DataflowGraph unfused_graph(const DataflowOptions& options = {});

/// Merges `members` into one node, which takes the place of the first. Edges inside vanish,
/// parallel edges add up. The name joins the computations inside with "_", or the data where there
/// is no computation.
[[nodiscard]] DataflowGraph merge_nodes(const DataflowGraph& graph,
                                        std::span<const std::uint32_t> members);

}  // namespace spillway::plan
