#include "runtime/model/blocks/layer_parts.hpp"

#include <utility>

namespace spillway::model::blocks {
namespace {

/// Returns the vectors of a whole layer, as they stand in the block that all layers share.
BlockLayout vectors_of(const BlockLayout& layer) {
  BlockLayout vectors;
  for (ParameterTensor tensor : layer.tensors) {
    if (!tensor.is_vector) continue;
    tensor.first = vectors.parameters;
    vectors.parameters += tensor.count;
    vectors.tensors.push_back(std::move(tensor));
  }
  return vectors;
}

}  // namespace

LayerParts parts_of(const ModelLayout& layout, const ModelLayout& whole, std::uint32_t layer) {
  const BlockRange range = layout.blocks_of(layer);
  const bool cut = layout.operator_tile > 0;
  const BlockLayout& uncut = whole.blocks.at(layer);
  return {.blocks = std::span(layout.blocks).subspan(range.first, range.end - range.first),
          .vectors = cut ? vectors_of(uncut) : uncut,
          .cut = cut};
}

}  // namespace spillway::model::blocks
