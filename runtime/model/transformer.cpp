#include "runtime/model/transformer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/model/blocks/head.hpp"
#include "runtime/model/blocks/layer.hpp"
#include "runtime/model/ops.hpp"
#include "runtime/model/rope_frequencies.hpp"

namespace spillway::model {
namespace {

using blocks::TensorRange;

void check_shape(const ModelConfig& config, BatchShape shape, DType compute, const Ops& ops) {
  check(shape.batch > 0 && shape.sequence > 0, ErrorCode::invalid_argument,
        fmt::format("a micro-batch of {} windows of {} tokens is empty", shape.batch,
                    shape.sequence));
  check_context(config, shape.sequence);
  check(compute == ops.compute(), ErrorCode::invalid_argument,
        fmt::format("the operations were made for {}, the model computes in {}",
                    name_of(ops.compute()), name_of(compute)));
}

}  // namespace

/// What runs the blocks, and the part of it that each block is.
struct Transformer::Body {
  Body(const ModelConfig& model, BatchShape shape, const ModelLayout& model_layout, Ops& operations)
      : Body(model, shape, model_layout, make_layout(model), operations) {}

  [[nodiscard]] bool is_cut() const { return layout.operator_tile > 0; }
  [[nodiscard]] std::uint32_t layer_of(std::uint32_t block) const {
    return layout.blocks[block].layer;
  }
  [[nodiscard]] bool is_grouped() const { return layout.part.cuts(); }
  [[nodiscard]] bool is_head(std::uint32_t block) const {
    return layer_of(block) == layout.head_layer(config);
  }
  [[nodiscard]] bool is_layer(std::uint32_t block) const {
    return layer_of(block) > 0 && !is_head(block);
  }
  [[nodiscard]] bool is_embedding(std::uint32_t block) const {
    return layer_of(block) == 0 && block >= layout.blocks_of(0).first;
  }
  /// Returns the part of the head that the loss on `block` runs.
  [[nodiscard]] std::uint32_t head_part_of(std::uint32_t block) const;
  [[nodiscard]] std::uint32_t part_of(std::uint32_t block) const {
    if (is_grouped()) return (block - 1) % 2;
    return block - layout.blocks_of(layer_of(block)).first;
  }
  /// Returns the vectors of `number`, in block 0 of a model that is cut.
  [[nodiscard]] TensorRange vectors_of(std::uint32_t number) const {
    return {(number - 1) * layer_vectors,
            number == config.layers + 1 ? head_vectors : layer_vectors};
  }
  [[nodiscard]] EmbeddingShape embedding_of(std::uint32_t block) const;
  /// Returns where the block has rows of the embedding's table.
  [[nodiscard]] TensorRange table_of(std::uint32_t block) const {
    const ParameterTensor& table = layout.blocks[block].tensors.front();
    return {table.first.value(), table.count.value()};
  }
  /// Sets `shared` and `shared_gradients` to the vectors of the layer `number`.
  template <class Arguments>
  void share_vectors(Arguments& a, std::uint32_t number) const;
  /// A block's padding has no gradient, nor has what the rank does not compute with; norms and
  /// updates run over it.
  void clear_padding(std::uint32_t block, offload::DeviceSpan<float> gradients, bool first) const;
  /// Clears the gradients behind a tied head's part of the vocabulary, which may be smaller than
  /// another rank's.
  void clear_behind_table(offload::DeviceSpan<float> tied_gradients, bool first) const {
    const std::uint64_t used = table_of(0).count;
    if (!first || tied_gradients.size() <= used) return;
    ops.fill_zero(tied_gradients.subspan(used, tied_gradients.size() - used));
  }

  ModelConfig config;
  BatchShape batch;
  const ModelLayout& layout;
  Ops& ops;
  blocks::Layer layer;
  blocks::Head head;
  std::optional<TensorRange> positions;  ///< the embedding's, where the family has them
  std::uint64_t layer_vectors, head_vectors;

 private:
  Body(const ModelConfig& model, BatchShape shape, const ModelLayout& model_layout,
       const ModelLayout& whole, Ops& operations);
};

Transformer::Body::Body(const ModelConfig& model, BatchShape shape, const ModelLayout& model_layout,
                        const ModelLayout& whole, Ops& operations)
    : config(model),
      batch(shape),
      layout(model_layout),
      ops(operations),
      layer(model, shape, blocks::parts_of(layout, whole, 1), ops),
      head(model, shape, blocks::parts_of(layout, whole, model.tied_head ? 0 : model.layers + 1),
           blocks::parts_of(layout, whole, model.layers + 1).vectors, ops),
      positions(blocks::find_tensors(layout.blocks.front(), {"wpe.weight"})),
      layer_vectors(blocks::parts_of(layout, whole, 1).vectors.parameters.value()),
      head_vectors(blocks::parts_of(layout, whole, model.layers + 1).vectors.parameters.value()) {}

EmbeddingShape Transformer::Body::embedding_of(std::uint32_t block) const {
  EmbeddingShape shape{.batch = batch.batch,
                       .sequence = batch.sequence,
                       .width = config.width,
                       .vocabulary = config.vocab_size,
                       .positions = positions ? config.max_context : 0,
                       .padding = config.padding_token};
  if (is_cut() || is_grouped()) {
    const ParameterTensor& table = layout.blocks[block].tensors.front();
    shape.first_row = table.skipped.value() / config.width;
    shape.rows = table.count.value() / config.width;
  }
  return shape;
}

std::uint32_t Transformer::Body::head_part_of(std::uint32_t block) const {
  const BlockRange range = layout.loss_blocks(config);
  SPILLWAY_ASSERT(block >= range.first && block < range.end);
  return block - range.first;
}

template <class Arguments>
void Transformer::Body::share_vectors(Arguments& a, std::uint32_t number) const {
  a.shared = is_cut() ? vectors_of(number).in(a.shared, ops.compute()) : a.parameters;
  if constexpr (requires { a.shared_gradients; }) {
    if (!is_cut()) {
      a.shared_gradients = a.gradients;
    } else if (!a.boundary_gradient.empty()) {
      a.shared_gradients = vectors_of(number).in(a.shared_gradients, a.first).values;
    }
  }
}

void Transformer::Body::clear_padding(std::uint32_t block, offload::DeviceSpan<float> gradients,
                                      bool first) const {
  if (!first) return;
  std::uint64_t used = 0;
  const auto clear_until = [&](std::uint64_t next) {
    if (next > used) ops.fill_zero(gradients.subspan(used, next - used));
  };
  for (const ParameterTensor& tensor : layout.blocks[block].tensors) {
    const ColumnRange in_block = tensor.used_in_block();
    clear_until(in_block.first);
    used = in_block.first + in_block.count;
  }
  clear_until(gradients.size());
}

Transformer::Transformer(const ModelConfig& config, BatchShape shape, DType compute, Ops& ops,
                         std::uint64_t operator_tile)
    : Transformer(config, shape, compute, ops, make_layout(config, operator_tile)) {}
Transformer::Transformer(const ModelConfig& config, BatchShape shape, DType compute, Ops& ops,
                         const TensorPart& part)
    : Transformer(config, shape, compute, ops, make_layout(config, part)) {}
Transformer::Transformer(const ModelConfig& config, BatchShape shape, DType compute, Ops& ops,
                         ModelLayout layout)
    : layout_(std::move(layout)) {
  check_shape(config, shape, compute, ops);
  body_ = std::make_unique<Body>(config, shape, layout_, ops);
}
Transformer::~Transformer() = default;

const ModelLayout& Transformer::layout() const { return layout_; }

Bytes Transformer::boundary_bytes() const {
  const std::uint64_t tokens = std::uint64_t{body_->batch.batch} * body_->batch.sequence;
  return Bytes{own_tokens(layout_.part, tokens) * body_->config.width *
               size_of(body_->ops.compute())};
}

Bytes Transformer::summed_bytes() const {
  return boundary_bytes() * std::uint64_t{layout_.part.sequence ? layout_.part.count : 1};
}

Bytes Transformer::saved_bytes(std::uint32_t block) const {
  if (!body_->is_layer(block)) return {};
  const std::uint32_t part = body_->part_of(block);
  return part == 0 || body_->is_grouped() ? body_->layer.saved_bytes(part) : Bytes{};
}

Bytes Transformer::carried_bytes() const {
  return std::max(body_->layer.carried_bytes(), body_->head.carried_bytes());
}

bool Transformer::feeds_backward(std::uint32_t block) const {
  return body_->is_layer(block) && body_->layer.feeds_backward(body_->part_of(block));
}

Bytes Transformer::workspace_bytes() const {
  Bytes largest = std::max(body_->layer.workspace_bytes(), body_->head.workspace_bytes());
  const BlockRange embedding = layout_.blocks_of(0);
  for (std::uint32_t block = embedding.first; block < embedding.end; ++block) {
    largest = std::max(largest, body_->ops.embedding_workspace(body_->embedding_of(block)));
  }
  return largest;
}

Bytes Transformer::constant_bytes() const {
  if (body_->config.is_gpt2()) return {};
  return Bytes{std::uint64_t{body_->batch.sequence} * body_->config.head_dim * sizeof(float)};
}

std::vector<float> Transformer::constants() const {
  if (body_->config.is_gpt2()) return {};
  return rope_angles(rope_inverse_frequencies(body_->config), body_->batch.sequence);
}

void Transformer::bind_constants(offload::DeviceSpan<const float> constants) {
  SPILLWAY_ASSERT(constants.size() * sizeof(float) == constant_bytes().value());
  body_->layer.bind_constants(constants);
}

double Transformer::forward_flops(std::uint32_t block) const {
  if (body_->is_head(block)) return loss_flops(block);
  return body_->is_layer(block) ? body_->layer.forward_flops(body_->part_of(block)) : 0;
}

double Transformer::backward_flops(std::uint32_t block) const {
  if (body_->is_head(block)) return 2 * loss_flops(block);
  return body_->is_layer(block) ? body_->layer.backward_flops(body_->part_of(block)) : 0;
}

double Transformer::loss_flops(std::uint32_t block) const {
  return body_->head.forward_flops(body_->head_part_of(block));
}

void Transformer::forward(const ForwardArguments& a) {
  if (body_->is_layer(a.block)) {
    ForwardArguments own = a;
    body_->share_vectors(own, body_->layer_of(a.block));
    return body_->layer.forward(body_->part_of(a.block), own);
  }
  SPILLWAY_ASSERT(body_->is_embedding(a.block));
  const DType compute = body_->ops.compute();
  const auto& positions = body_->positions;
  // The rows of other ranks' tokens are theirs to add.
  if (body_->is_grouped()) body_->ops.fill_zero(a.output.as<float>());
  body_->ops.embedding_forward(
      body_->embedding_of(a.block), a.tokens, body_->table_of(a.block).in(a.parameters, compute),
      positions ? positions->in(a.parameters, compute) : ConstTensor{}, a.output);
}

void Transformer::normalize(const NormalizeArguments& a) {
  NormalizeArguments own = a;
  own.shared = a.parameters;
  if (body_->is_head(a.block)) return body_->head.normalize(own);
  body_->layer.normalize(body_->part_of(a.block), own);
}

void Transformer::backward(const BackwardArguments& a) {
  if (body_->is_layer(a.block)) {
    BackwardArguments own = a;
    body_->share_vectors(own, body_->layer_of(a.block));
    body_->layer.backward(body_->part_of(a.block), own);
  } else {
    SPILLWAY_ASSERT(body_->is_embedding(a.block));
    const auto& positions = body_->positions;
    body_->ops.embedding_backward(body_->embedding_of(a.block), a.tokens, a.boundary_gradient,
                                  body_->table_of(a.block).in(a.gradients, a.first),
                                  positions ? positions->in(a.gradients, a.first) : Gradient{},
                                  a.workspace);
  }
  body_->clear_padding(a.block, a.gradients, a.first);
}

void Transformer::finish_backward(const BackwardArguments& a) {
  SPILLWAY_ASSERT(body_->is_layer(a.block));
  BackwardArguments own = a;
  body_->share_vectors(own, body_->layer_of(a.block));
  body_->layer.finish_backward(body_->part_of(a.block), own);
}

void Transformer::loss(const LossArguments& a) {
  const std::uint32_t block = body_->is_cut() ? a.block : layout_.loss_blocks(body_->config).first;
  LossArguments own = a;
  body_->share_vectors(own, body_->config.layers + 1);
  if (body_->config.tied_head) {
    own.parameters = a.tied_parameters;
    own.gradients = a.tied_gradients;
  }
  const bool begins_group = a.pass == LossPass::gradient && !a.carried.empty();
  if (body_->is_grouped() ? begins_group : !a.boundary_gradient.empty()) {
    if (body_->is_head(block)) body_->clear_padding(block, a.gradients, a.first);
    if (begins_group) body_->clear_behind_table(a.tied_gradients, a.first);
    // The head's is the first backward of a micro-batch, and every vector's gradient is to come.
    if (body_->is_cut()) body_->clear_padding(0, a.shared_gradients, a.first);
  }
  body_->head.loss(body_->head_part_of(block), own);
}

void Transformer::logits(const LogitsArguments& a) {
  check(!body_->is_cut() && !body_->is_grouped(), ErrorCode::not_supported,
        "logits of a model in tiles, or of a part of one: make it whole");
  LogitsArguments own = a;
  if (body_->config.tied_head) own.parameters = a.tied_parameters;
  body_->head.logits(own, a.parameters);
}

}  // namespace spillway::model
