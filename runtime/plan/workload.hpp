// What the planner knows of a model and of a training step: counts and sizes, no tensors.
#pragma once

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
};

/// Blocks in forward order: embedding, layers, head. The head computes the loss and both its
/// passes in one op. A tied head uses the parameters of block 0 as well as its own.
struct Workload {
  std::vector<BlockShape> blocks;
  bool tied_head = false;
  ElementCount tied_elements;       ///< of block 0 used by a tied head (from its start); else 0
  DType compute = DType::fp32;      ///< of parameters, gradients and activations
  Bytes boundary_bytes;             ///< one activation tensor between blocks, per micro-batch
  Bytes workspace_bytes;            ///< temporaries of the largest op of any block
  Bytes constant_bytes;             ///< tables that operators read, the same for all blocks
  Bytes token_bytes;                ///< token ids of one micro-batch, targets included
  std::uint64_t tokens = 0;         ///< targets of one micro-batch
  std::uint32_t micro_batches = 1;  ///< per round
  std::uint32_t rounds = 1;
};

}  // namespace spillway::plan
