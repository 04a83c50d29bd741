// A transformer whose matrices are cut into tiles of rows, each a block of its own.
#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/model/tiled_head.hpp"
#include "runtime/model/tiled_layer.hpp"
#include "runtime/model/transformer_body.hpp"

namespace spillway::model {
namespace {

/// The vectors of one layer as a block of their own: what stands together in the cut layout.
BlockLayout vectors_of(const BlockLayout& whole) {
  BlockLayout vectors;
  for (ParameterTensor tensor : whole.tensors) {
    if (!tensor.is_vector) continue;
    tensor.first = vectors.parameters;
    vectors.parameters += tensor.count;
    vectors.tensors.push_back(std::move(tensor));
  }
  return vectors;
}

/// Index of the first block of `layer`.
std::uint32_t begin_of(const ModelLayout& layout, std::uint32_t layer) {
  const auto blocks = std::span(layout.blocks).subspan(1);
  const auto found = std::ranges::lower_bound(blocks, layer, {}, &BlockLayout::layer);
  return static_cast<std::uint32_t>(1 + (found - blocks.begin()));
}

std::span<const BlockLayout> blocks_of(const ModelLayout& layout, std::uint32_t layer) {
  const std::uint32_t begin = begin_of(layout, layer);
  return std::span(layout.blocks).subspan(begin, begin_of(layout, layer + 1) - begin);
}

class TiledModel final : public TransformerBody {
 public:
  TiledModel(const ModelConfig& config, BatchShape batch, const ModelLayout& layout, Ops& ops)
      : TiledModel(config, batch, layout, make_layout(config), ops) {}

  [[nodiscard]] Bytes saved_bytes(std::uint32_t block) const override {
    return is_layer(block) && tile_of(block) == 0 ? layer_.saved_bytes() : Bytes{};
  }
  [[nodiscard]] Bytes carried_bytes() const override {
    return std::max(layer_.carried_bytes(), head_.carried_bytes());
  }
  [[nodiscard]] bool feeds_backward(std::uint32_t block) const override {
    return is_layer(block) && layer_.feeds_backward(tile_of(block));
  }
  [[nodiscard]] Bytes workspace_bytes() const override {
    Bytes largest = std::max(layer_.workspace_bytes(), head_.workspace_bytes());
    for (std::uint32_t block = 1; layer_of(block) == 0; ++block) {
      largest = std::max(largest, ops_->embedding_workspace(embedding_of(block)));
    }
    return largest;
  }
  [[nodiscard]] double forward_flops(std::uint32_t block) const override {
    if (is_head(block)) return head_.forward_flops(tile_of(block));
    return is_layer(block) ? layer_.forward_flops(tile_of(block)) : 0;
  }
  [[nodiscard]] double backward_flops(std::uint32_t block) const override {
    if (is_head(block)) return 2 * head_.forward_flops(tile_of(block));
    return is_layer(block) ? layer_.backward_flops(tile_of(block)) : 0;
  }
  void bind_constants(offload::DeviceSpan<const float> constants) override {
    layer_.bind_constants(constants);
  }

  void forward(const ForwardArguments& a) override {
    SPILLWAY_ASSERT(a.block > 0 && !is_head(a.block));
    if (!is_layer(a.block)) {
      ops_->embedding_forward(embedding_of(a.block), a.tokens,
                              table_of(a.block).in(a.parameters, ops_->compute()), {}, a.output);
      return;
    }
    ForwardArguments own = a;
    own.shared = vectors_of_block(a.block).in(a.shared, ops_->compute());
    layer_.forward(tile_of(a.block), own);
  }

  void backward(const BackwardArguments& a) override {
    SPILLWAY_ASSERT(a.block > 0 && !is_head(a.block));
    if (is_layer(a.block)) {
      BackwardArguments own = a;
      const TensorRange vectors = vectors_of_block(a.block);
      own.shared = vectors.in(a.shared, ops_->compute());
      own.shared_gradients = vectors.in(a.shared_gradients, a.first).values;
      layer_.backward(tile_of(a.block), own);
    } else {
      ops_->embedding_backward(embedding_of(a.block), a.tokens, a.boundary_gradient,
                               table_of(a.block).in(a.gradients, a.first), {}, a.workspace);
    }
    clear_padding(*ops_, layout_->blocks[a.block], a.gradients, a.first);
  }

  void loss(const LossArguments& a) override {
    SPILLWAY_ASSERT(is_head(a.block));
    LossArguments own = a;
    const TensorRange vectors = vectors_of_block(a.block);
    own.shared = vectors.in(a.shared, ops_->compute());
    if (!a.boundary_gradient.empty()) {
      own.shared_gradients = vectors.in(a.shared_gradients, a.first).values;
      // The head's is the first backward of a micro-batch, and every vector's gradient is to come.
      clear_padding(*ops_, layout_->blocks.front(), a.shared_gradients, a.first);
      clear_padding(*ops_, layout_->blocks[a.block], a.gradients, a.first);
    }
    head_.loss(tile_of(a.block), own);
  }

  void logits(const Transformer::LogitsArguments&) override {
    throw Error(ErrorCode::not_supported,
                "logits of a model in tiles: make it without operator_tile");
  }

 private:
  TiledModel(const ModelConfig& config, BatchShape batch, const ModelLayout& layout,
             const ModelLayout& whole, Ops& ops)
      : config_(config),
        batch_(batch),
        ops_(&ops),
        layout_(&layout),
        layer_(config, batch, blocks_of(layout, 1), vectors_of(whole.blocks.at(1)), ops),
        head_(config, batch, blocks_of(layout, config.layers + 1), vectors_of(whole.blocks.back()),
              ops),
        vectors_of_layer_(vectors_of(whole.blocks.at(1)).parameters.value()),
        vectors_of_head_(vectors_of(whole.blocks.back()).parameters.value()) {}

  [[nodiscard]] std::uint32_t layer_of(std::uint32_t block) const {
    return layout_->blocks[block].layer;
  }
  [[nodiscard]] bool is_layer(std::uint32_t block) const {
    return layer_of(block) > 0 && !is_head(block);
  }
  [[nodiscard]] bool is_head(std::uint32_t block) const {
    return layer_of(block) == config_.layers + 1;
  }
  [[nodiscard]] std::uint32_t tile_of(std::uint32_t block) const {
    return block - begin_of(*layout_, layer_of(block));
  }
  /// The part of block 0 that belongs to the block's layer.
  [[nodiscard]] TensorRange vectors_of_block(std::uint32_t block) const {
    return {(layer_of(block) - 1) * vectors_of_layer_,
            is_head(block) ? vectors_of_head_ : vectors_of_layer_};
  }
  [[nodiscard]] TensorRange table_of(std::uint32_t block) const {
    return {0, layout_->blocks[block].parameters.value()};
  }
  [[nodiscard]] EmbeddingShape embedding_of(std::uint32_t block) const {
    const ParameterTensor& table = layout_->blocks[block].tensors.front();
    return {.batch = batch_.batch,
            .sequence = batch_.sequence,
            .width = config_.width,
            .vocabulary = config_.vocab_size,
            .positions = 0,
            .first_row = table.skipped.value() / config_.width,
            .rows = table.count.value() / config_.width};
  }

  ModelConfig config_;
  BatchShape batch_;
  Ops* ops_;
  const ModelLayout* layout_;
  TiledLayer layer_;
  TiledHead head_;
  std::uint64_t vectors_of_layer_, vectors_of_head_;
};

}  // namespace

std::unique_ptr<TransformerBody> make_tiled_model(const ModelConfig& config, BatchShape batch,
                                                  const ModelLayout& layout, Ops& ops) {
  return std::make_unique<TiledModel>(config, batch, layout, ops);
}

}  // namespace spillway::model
