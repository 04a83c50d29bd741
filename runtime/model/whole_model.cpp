// A transformer whose layers run whole: one block each.
#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/model/head.hpp"
#include "runtime/model/layer.hpp"
#include "runtime/model/transformer_body.hpp"

namespace spillway::model {
namespace {

class WholeModel final : public TransformerBody {
 public:
  WholeModel(const ModelConfig& config, BatchShape batch, const ModelLayout& layout, Ops& ops)
      : config_(config),
        ops_(&ops),
        layout_(&layout),
        layer_(config, batch, layout.blocks.at(1), ops),
        head_(config, batch, layout.blocks.back(), ops) {
    embedding_ = {.batch = batch.batch,
                  .sequence = batch.sequence,
                  .width = config.width,
                  .vocabulary = config.vocab_size,
                  .positions = config.is_gpt2() ? config.max_context : 0};
    const BlockLayout& block = layout.blocks.front();
    table_ = {block.tensors.front().first.value(), block.tensors.front().count.value()};
    if (config.is_gpt2()) positions_ = require_tensors(block, {"wpe.weight"});
  }

  [[nodiscard]] Bytes saved_bytes(std::uint32_t block) const override {
    return is_embedding(block) || is_head(block) ? Bytes{} : layer_.saved_bytes();
  }
  [[nodiscard]] Bytes carried_bytes() const override { return {}; }
  [[nodiscard]] bool feeds_backward(std::uint32_t block) const override {
    return !is_embedding(block) && !is_head(block);
  }
  [[nodiscard]] Bytes workspace_bytes() const override {
    return std::max(
        {layer_.workspace_bytes(), head_.workspace_bytes(), ops_->embedding_workspace(embedding_)});
  }
  [[nodiscard]] double forward_flops(std::uint32_t block) const override {
    if (is_embedding(block)) return 0;
    return is_head(block) ? head_.forward_flops() : layer_.forward_flops();
  }
  [[nodiscard]] double backward_flops(std::uint32_t block) const override {
    if (is_embedding(block)) return 0;
    return is_head(block) ? 2 * head_.forward_flops() : layer_.backward_flops();
  }
  void bind_constants(offload::DeviceSpan<const float> constants) override {
    layer_.bind_constants(constants);
  }

  void forward(const ForwardArguments& a) override {
    SPILLWAY_ASSERT(!is_head(a.block));
    if (is_embedding(a.block)) {
      const DType compute = ops_->compute();
      ops_->embedding_forward(
          embedding_, a.tokens, table_.in(a.parameters, compute),
          config_.is_gpt2() ? positions_.in(a.parameters, compute) : ConstTensor{}, a.output);
    } else {
      layer_.forward(a);
    }
  }

  void backward(const BackwardArguments& a) override {
    SPILLWAY_ASSERT(!is_head(a.block));
    if (is_embedding(a.block)) {
      ops_->embedding_backward(
          embedding_, a.tokens, a.boundary_gradient, table_.in(a.gradients, a.first),
          config_.is_gpt2() ? positions_.in(a.gradients, a.first) : Gradient{}, a.workspace);
    } else {
      layer_.backward(a);
    }
    clear_padding(*ops_, layout_->blocks[a.block], a.gradients, a.first);
  }

  void loss(const LossArguments& a) override {
    head_.loss(a);
    if (a.boundary_gradient.empty()) return;
    clear_padding(*ops_, layout_->blocks.back(), a.gradients, a.first);
  }

  void logits(const Transformer::LogitsArguments& a) override { head_.logits(a); }

 private:
  static bool is_embedding(std::uint32_t block) { return block == 0; }
  [[nodiscard]] bool is_head(std::uint32_t block) const {
    return block + 1 == layout_->blocks.size();
  }

  ModelConfig config_;
  Ops* ops_;
  const ModelLayout* layout_;
  Layer layer_;
  Head head_;
  EmbeddingShape embedding_;
  TensorRange table_, positions_;
};

}  // namespace

void clear_padding(Ops& ops, const BlockLayout& block, offload::DeviceSpan<float> gradients,
                   bool first) {
  const std::uint64_t used = block.parameters.value();
  if (first && gradients.size() > used) {
    ops.fill_zero(gradients.subspan(used, gradients.size() - used));
  }
}

std::unique_ptr<TransformerBody> make_whole_model(const ModelConfig& config, BatchShape batch,
                                                  const ModelLayout& layout, Ops& ops) {
  return std::make_unique<WholeModel>(config, batch, layout, ops);
}

}  // namespace spillway::model
