// The parts of a layer: the blocks that hold its matrices, and the block of its vectors. A whole
// layer is a layer of one part, whose block holds the vectors too. Where matrices are cut into
// tiles (ModelLayout, `operator_tile`), each tile is a part, and the vectors lie in block 0. Of one
// rank of a tensor group, attention and MLP are a part each, and each has the vectors that it
// reads.
#pragma once

#include <span>

#include "runtime/model/blocks/tensor_range.hpp"
#include "runtime/model/parameter_layout.hpp"

namespace spillway::model::blocks {

struct LayerParts {
  std::span<const BlockLayout> blocks;
  /// Has the layer's vectors, at the elements where the arguments' `shared` has them.
  BlockLayout vectors;
  /// Whether what several parts add up to is summed in fp32 and rounded once.
  bool cut = false;
  TensorPart part{};  ///< what of the layer the blocks have
};

/// Returns the parts of `layer`. `whole` is the layout of the same model uncut. The result refers
/// to `layout`.
[[nodiscard]] LayerParts parts_of(const ModelLayout& layout, const ModelLayout& whole,
                                  std::uint32_t layer);

}  // namespace spillway::model::blocks
