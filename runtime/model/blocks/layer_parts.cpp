#include "runtime/model/blocks/layer_parts.hpp"

#include <algorithm>

namespace spillway::model::blocks {
namespace {

/// The vectors of a whole layer, as they stand together in the block that all layers share.
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

std::uint32_t first_block(const ModelLayout& layout, std::uint32_t layer) {
  const std::uint32_t shared = layout.operator_tile > 0 ? 1 : 0;
  const auto blocks = std::span(layout.blocks).subspan(shared);
  const auto found = std::ranges::lower_bound(blocks, layer, {}, &BlockLayout::layer);
  return static_cast<std::uint32_t>(shared + (found - blocks.begin()));
}

LayerParts parts_of(const ModelLayout& layout, const ModelLayout& whole, std::uint32_t layer) {
  const std::uint32_t begin = first_block(layout, layer);
  const std::uint32_t count = first_block(layout, layer + 1) - begin;
  const bool cut = layout.operator_tile > 0;
  const BlockLayout& uncut = whole.blocks.at(layer);
  return {.blocks = std::span(layout.blocks).subspan(begin, count),
          .vectors = cut ? vectors_of(uncut) : uncut,
          .cut = cut};
}

}  // namespace spillway::model::blocks
