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

/// Returns a layer of one rank of a tensor group.
LayerParts halves_of(const ModelLayout& layout, std::uint32_t layer) {
  const auto blocks = std::span(layout.blocks).subspan(2 * layer - 1, 2);
  BlockLayout vectors;
  for (const BlockLayout& block : blocks) {
    vectors.tensors.insert(vectors.tensors.end(), block.tensors.begin(), block.tensors.end());
  }
  return {.blocks = blocks, .vectors = std::move(vectors), .cut = false, .part = layout.part};
}

}  // namespace

LayerParts parts_of(const ModelLayout& layout, const ModelLayout& whole, std::uint32_t layer) {
  const bool is_layer = layer > 0 && layer + 1 < whole.blocks.size();
  if (layout.part.cuts() && is_layer) return halves_of(layout, layer);
  if (layout.part.cuts()) {
    const std::size_t block = layer == 0 ? 0 : layout.blocks.size() - 1;
    return {.blocks = std::span(layout.blocks).subspan(block, 1),
            .vectors = layout.blocks[block],
            .part = layout.part};
  }
  const BlockRange range = layout.blocks_of(layer);
  const bool cut = layout.operator_tile > 0;
  const BlockLayout& uncut = whole.blocks.at(layer);
  return {.blocks = std::span(layout.blocks).subspan(range.first, range.end - range.first),
          .vectors = cut ? vectors_of(uncut) : uncut,
          .cut = cut,
          .part = {}};
}

}  // namespace spillway::model::blocks
