// What the planner knows of a model and of a training step: counts and sizes, no tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/state_format.hpp"
#include "runtime/base/units.hpp"
#include "runtime/plan/ranks.hpp"
#include "runtime/plan/stage.hpp"

namespace spillway::plan {

/// One streaming unit. Sizes are per micro-batch.
struct BlockShape {
  std::string name;
  ElementCount parameters;         ///< without padding
  ElementCount padded_parameters;  ///< a multiple of `kLeafParameters`, in every shard
  double forward_flops = 0;        ///< of one micro-batch
  double backward_flops = 0;       ///< of one micro-batch, recomputation not counted
  Bytes saved_bytes;               ///< activations inside it that backward needs
  // These are of a workload in tiles, where `saved_bytes` are those of the first block of a layer:
  std::uint32_t layer = 0;     ///< 0: embedding; 1, 2, ...: transformer layers; last: head
  bool feeds_backward = true;  ///< recomputation of the layer runs this block
  double loss_flops = 0;       ///< of a tied head's loss on this block; its gradients take twice
  /// Parameters that nothing updates. They are streamed with the others, and a block may have no
  /// others; only where another framework runs the passes.
  Bytes frozen_bytes{};
  // All ranks of a tensor group have the parameters from `shared_first` on, which is a
  // multiple of kLeafParameters, and gradients from `partial_first` on add up over them.
  ElementCount shared_first{};
  ElementCount partial_first{};

  /// Whether there is anything to train; blocks of other stages are empty.
  [[nodiscard]] bool has_parameters() const { return padded_parameters > ElementCount{}; }
};

/// Returns the padded size of a block, in which each rank's part is whole leaves.
[[nodiscard]] inline ElementCount pad(ElementCount parameters, std::uint32_t ranks) {
  return ElementCount{round_up(parameters.value(), std::uint64_t{ranks} * kLeafParameters)};
}

/// Blocks in forward order: embedding, layers, head. The head computes the loss and both its
/// passes in one op. A tied head uses the parameters of block 0 as well as its own.
///
/// In tiles (model::ModelLayout, `operator_tile`) a layer is several blocks, one after the other in
/// forward, in reverse in backward; recomputation is a pass of its own ahead of backward. The
/// head's blocks run twice: for the loss, and in reverse for the gradient; a tied head has no
/// blocks and runs on the embedding's. Block 0 is of no layer: it holds the vectors that the ops of
/// all others read, lives on the device, and its gradient is complete when the last layer's
/// backward ends.
///
/// In a tensor group, blocks have the sizes of the largest part, and attention and MLP of a layer
/// are a block each. What a pass makes is added up over the group before the next block reads it.
///
/// All ranks of a stage have one workload. Which of them a rank is, a GridPlace tells beside it.
struct Workload {
  std::vector<BlockShape> blocks;
  bool operator_tiles = false;
  bool tied_head = false;
  ElementCount tied_elements;   ///< of `tied_blocks` used by a tied head; else 0
  DType compute = DType::fp32;  ///< of parameters, gradients and activations
  Bytes boundary_bytes;         ///< one activation tensor between blocks, per micro-batch
  Bytes workspace_bytes;        ///< temporaries of the largest op of any block
  Bytes carried_bytes;          ///< what tiles leave each other, per micro-batch
  Bytes constant_bytes;         ///< tables that operators read, the same for all blocks
  Bytes token_bytes;            ///< token ids of one micro-batch, targets included
  Bytes logits_bytes;           ///< of one micro-batch, where a plan makes no loss but logits
  /// Another framework runs the passes: blocks are ranges of parameters, and their gradients come
  /// to the host.
  bool external = false;
  bool streams_external = false;  ///< the framework reads parameters on the device, not on the host
  Bytes resident_frozen_bytes;    ///< frozen tensors of no block, which stay on the device
  Replicas replicas;
  TensorGroup tensor;
  // These are a tensor group's, per micro-batch:
  Bytes scan_bytes;    ///< what a rank knows of the tokens in the head
  Bytes summed_bytes;  ///< its addend to an output: `boundary_bytes`, or that of all ranks
  Stage stage;
  StaleStage stale;
  std::uint64_t tokens = 0;         ///< targets of one micro-batch
  std::uint32_t micro_batches = 1;  ///< of this rank in a round
  std::uint32_t rounds = 1;

  // Layers and their blocks

  /// Returns the block's layer: the block itself where there are no tiles.
  [[nodiscard]] std::uint32_t layer_of(std::uint32_t block) const {
    return operator_tiles ? blocks[block].layer : block;
  }
  /// Number of layers, embedding and head included.
  [[nodiscard]] std::uint32_t layers() const {
    const std::uint32_t last = layer_of(static_cast<std::uint32_t>(blocks.size() - 1));
    return last + (head_is_embedding() ? 2 : 1);
  }
  [[nodiscard]] std::uint32_t head_layer() const { return layers() - 1; }
  /// Whether the head has no blocks of its own.
  [[nodiscard]] bool head_is_embedding() const { return operator_tiles && tied_head; }
  /// Returns the first block of a layer; of `layers()`, the number of blocks.
  [[nodiscard]] std::uint32_t first_block(std::uint32_t layer) const {
    if (!operator_tiles) return layer;
    const auto first = blocks.begin() + 1;
    return static_cast<std::uint32_t>(
        std::lower_bound(first, blocks.end(), layer,
                         [](const BlockShape& b, std::uint32_t l) { return b.layer < l; }) -
        blocks.begin());
  }
  [[nodiscard]] BlockRange blocks_of(std::uint32_t layer) const {
    return {first_block(layer), first_block(layer + 1)};
  }
  /// Returns the blocks that the loss runs on, one after the other.
  [[nodiscard]] BlockRange loss_blocks() const {
    return blocks_of(head_is_embedding() ? 0 : head_layer());
  }
  /// Returns the blocks whose parameters a tied head uses as well, each in its loss.
  [[nodiscard]] BlockRange tied_blocks() const { return tied_head ? blocks_of(0) : BlockRange{}; }
  /// Number of elements that a tied head uses of one of `tied_blocks`, from its start.
  [[nodiscard]] ElementCount tied_elements_of(std::uint32_t block) const {
    return operator_tiles ? blocks[block].parameters : tied_elements;
  }

  // FLOPs of the loss

  /// Number of times that a step makes the logits of a micro-batch. In tiles or on a tensor group
  /// it is two: the gradient needs sums over all logits first.
  [[nodiscard]] std::uint32_t logit_passes() const {
    return operator_tiles || sums_passes() ? 2 : 1;
  }
  /// FLOPs of the loss on one of `loss_blocks`.
  [[nodiscard]] double loss_flops(std::uint32_t block) const {
    return head_is_embedding() ? blocks[block].loss_flops : blocks[block].forward_flops;
  }
  /// FLOPs of the gradients of the loss on one of `loss_blocks`.
  [[nodiscard]] double loss_gradient_flops(std::uint32_t block) const {
    return head_is_embedding() ? 2 * blocks[block].loss_flops : blocks[block].backward_flops;
  }

  // Its ranks

  [[nodiscard]] Grid grid() const {
    return {.stages = stage.count, .replicas = replicas.count, .tensor = tensor.count};
  }

  // This rank's stage

  /// Whether this rank runs the layer.
  [[nodiscard]] bool runs(std::uint32_t layer) const {
    return stage.chunks.empty() || std::ranges::any_of(stage.chunks, [&](const BlockRange& c) {
             return c.contains(layer);
           });
  }
  /// Whether this rank makes the layer's output or reads it.
  [[nodiscard]] bool has_output(std::uint32_t layer) const {
    return runs(layer) || runs(layer + 1);
  }
  /// Whether the layer's output waits for a backward on this rank. What only the head or another
  /// stage reads does not.
  [[nodiscard]] bool output_waits(std::uint32_t layer) const {
    return layer + 1 < head_layer() && runs(layer + 1);
  }
  /// Whether this rank's head uses an embedding that another stage has.
  [[nodiscard]] bool borrows_embedding() const {
    return tied_head && runs(head_layer()) && !runs(0);
  }
  /// Whether another stage's head uses this rank's embedding.
  [[nodiscard]] bool lends_embedding() const { return tied_head && runs(0) && !runs(head_layer()); }
  /// Number of micro-batches whose activations are kept at once.
  [[nodiscard]] std::uint32_t micro_batches_in_flight() const {
    return micro_batches * stage.in_flight;
  }

  // Its tensor group

  /// Whether what passes make is added up over a tensor group.
  [[nodiscard]] bool sums_passes() const { return tensor.count > 1; }
  /// Whether a rank has only its own tokens of what lies between blocks.
  [[nodiscard]] bool shares_tokens() const { return sums_passes() && tensor.sequence; }
  /// Whether gradients of a block's last parameters add up over a tensor group.
  [[nodiscard]] bool sums_shared(std::uint32_t block) const {
    return sums_passes() && blocks[block].partial_first < blocks[block].parameters;
  }

  // Its replicas

  /// Number of parts that a block's state is cut into, all of one size.
  [[nodiscard]] std::uint32_t shards() const {
    return replicas.sharding == Sharding::none ? 1 : replicas.count;
  }
  /// Number of parameters in this rank's part of a block.
  [[nodiscard]] ElementCount shard_elements(std::uint32_t block) const {
    return ElementCount{blocks[block].padded_parameters.value() / shards()};
  }
  /// Returns where a replica's part of a block begins.
  [[nodiscard]] ElementCount shard_start(std::uint32_t block, std::uint32_t replica) const {
    return ElementCount{shards() == 1 ? 0 : shard_elements(block).value() * replica};
  }
  /// Whether a pass has to gather the parameters of its block.
  [[nodiscard]] bool gathers() const {
    return replicas.count > 1 && replicas.sharding == Sharding::parameters;
  }
  /// Whether ranks of a node keep what they have gathered of a block, because it is visited again.
  [[nodiscard]] bool keeps_secondary(std::uint32_t block) const {
    return gathers() && replicas.secondary > 1 && visits(block) > 1;
  }
  /// Number of parameters in this rank's part of a node's copy of a block.
  [[nodiscard]] ElementCount secondary_elements(std::uint32_t block) const {
    return ElementCount{blocks[block].padded_parameters.value() / replicas.secondary};
  }
  /// Number of times that a step's passes read the parameters of a block.
  [[nodiscard]] std::uint32_t visits(std::uint32_t block) const {
    const bool both_passes = block > 0 && block != head_layer();
    const bool also_in_head = block == 0 && tied_head;
    return rounds * (both_passes || also_in_head ? 2 : 1);
  }
  /// Whether ranks hold all parameters and update a part of them.
  [[nodiscard]] bool shares_updates() const {
    return replicas.count > 1 && replicas.sharding == Sharding::state;
  }

  // Sums of gradients

  /// Number of gradients of one round that this rank adds to its sums.
  [[nodiscard]] std::uint32_t gradients_of_round() const {
    return replicas.sums == SumOrder::fixed ? replicas.count : 1;
  }
  /// Whether a gradient waits as a sum of several.
  [[nodiscard]] bool sums_gradients() const { return rounds * gradients_of_round() > 1; }
};

/// Number of micro-batches of a step, of this rank.
[[nodiscard]] inline std::uint64_t micro_batches_of_step(const Workload& workload) {
  return std::uint64_t{workload.micro_batches} * workload.rounds;
}

/// Index of a rank's micro-batch among those of its step, which count round by round.
[[nodiscard]] inline std::uint32_t index_in_step(const Workload& workload, std::uint32_t round,
                                                 std::uint32_t m) {
  return round * workload.micro_batches + m;
}

/// Number of targets of a step, of all ranks.
[[nodiscard]] inline std::uint64_t tokens_of_step(const Workload& workload) {
  return workload.tokens * micro_batches_of_step(workload) * workload.replicas.count;
}

/// FLOPs of FWD-BWD of one micro-batch, nothing recomputed. A head in tiles, or of a tensor group,
/// makes its logits twice.
[[nodiscard]] inline double micro_batch_flops(const Workload& workload) {
  const BlockRange loss = workload.loss_blocks();
  double flops = 0;
  for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
    const BlockShape& block = workload.blocks[b];
    const bool head = workload.layer_of(b) == workload.head_layer();
    if (!head) flops += block.forward_flops + block.backward_flops;
    if (loss.contains(b)) {
      flops += workload.loss_flops(b) * workload.logit_passes() + workload.loss_gradient_flops(b);
    }
  }
  return flops;
}

}  // namespace spillway::plan
