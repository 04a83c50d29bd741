// What the planner knows of a model and of a training step: counts and sizes, no tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/state_format.hpp"
#include "runtime/base/units.hpp"

namespace spillway::plan {

enum class Tier : std::uint8_t { device, host, nvme };
/// One streaming unit. Sizes are per micro-batch.
struct BlockShape {
  std::string name;
  ElementCount parameters;         ///< without padding
  ElementCount padded_parameters;  ///< a multiple of `kLeafParameters`
  double forward_flops = 0;        ///< of one micro-batch
  double backward_flops = 0;       ///< of one micro-batch, recomputation not counted
  Bytes saved_bytes;               ///< internal activations that backward needs
  // These are of a workload in tiles, where `saved_bytes` are those of the first block of a layer:
  std::uint32_t layer = 0;     ///< 0: embedding; 1, 2, ...: transformer layers; last: head
  bool feeds_backward = true;  ///< recomputation of the layer runs this block
};

/// Blocks in forward order: embedding, layers, head. The head computes the loss and both its
/// passes in one op. A tied head uses the parameters of block 0 as well as its own.
///
/// In tiles (model::ModelLayout, `operator_tile`) a layer is several blocks, one after the other in
/// forward, in reverse in backward; recomputation is a pass of its own ahead of backward. The
/// head's blocks run twice: for the loss, and in reverse for the gradient. Block 0 is of no layer:
/// it holds the vectors that the ops of all others read, lives on the device, and its gradient is
/// complete when the last layer's backward ends. A layer's output stays on the device.
struct Workload {
  std::vector<BlockShape> blocks;
  bool tiled = false;
  bool tied_head = false;
  ElementCount tied_elements;       ///< of block 0 used by a tied head (from its start); else 0
  DType compute = DType::fp32;      ///< of parameters, gradients and activations
  Bytes boundary_bytes;             ///< one activation tensor between blocks, per micro-batch
  Bytes workspace_bytes;            ///< temporaries of the largest op of any block
  Bytes carried_bytes;              ///< what tiles leave each other, per micro-batch
  Bytes constant_bytes;             ///< tables that operators read, the same for all blocks
  Bytes token_bytes;                ///< token ids of one micro-batch, targets included
  std::uint64_t tokens = 0;         ///< targets of one micro-batch
  std::uint32_t micro_batches = 1;  ///< per round
  std::uint32_t rounds = 1;

  /// Layers are blocks where there are no tiles.
  [[nodiscard]] std::uint32_t layer_of(std::uint32_t block) const {
    return tiled ? blocks[block].layer : block;
  }
  [[nodiscard]] std::uint32_t layers() const {
    return layer_of(static_cast<std::uint32_t>(blocks.size() - 1)) + 1;
  }
  /// Returns the first of all blocks of a layer; of `layers()`: the number of blocks.
  [[nodiscard]] std::uint32_t first_block(std::uint32_t layer) const {
    if (!tiled) return layer;
    const auto first = blocks.begin() + 1;
    return static_cast<std::uint32_t>(
        std::lower_bound(first, blocks.end(), layer,
                         [](const BlockShape& b, std::uint32_t l) { return b.layer < l; }) -
        blocks.begin());
  }
};

/// Counts those of FWD-BWD of one micro-batch, nothing recomputed; a head in tiles makes its logits
/// twice.
[[nodiscard]] inline double micro_batch_flops(const Workload& workload) {
  double flops = 0;
  for (const BlockShape& block : workload.blocks) {
    const bool twice = workload.tiled && block.layer + 1 == workload.layers();
    flops += block.forward_flops * (twice ? 2 : 1) + block.backward_flops;
  }
  return flops;
}

}  // namespace spillway::plan
