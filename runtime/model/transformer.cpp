#include "runtime/model/transformer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/model/head.hpp"
#include "runtime/model/layer.hpp"
#include "runtime/model/rope_frequencies.hpp"

namespace spillway::model {

class Transformer::Implementation {
 public:
  Implementation(const ModelConfig& config, BatchShape batch, Ops& ops)
      : config_(config),
        batch_(batch),
        ops_(&ops),
        layout_(make_layout(config)),
        layer_(config, batch, layout_.blocks.at(1), ops),
        head_(config, batch, layout_.blocks.back(), ops) {
    embedding_ = {.batch = batch.batch,
                  .sequence = batch.sequence,
                  .width = config.width,
                  .vocabulary = config.vocab_size,
                  .positions = config.is_gpt2() ? config.max_context : 0};
    const BlockLayout& block = layout_.blocks.front();
    table_ = {block.tensors.front().first.value(), block.tensors.front().count.value()};
    if (config.is_gpt2()) positions_ = require_tensors(block, {"wpe.weight"});
  }

  [[nodiscard]] const ModelLayout& layout() const { return layout_; }
  [[nodiscard]] Layer& layer() { return layer_; }
  [[nodiscard]] const Layer& layer() const { return layer_; }
  [[nodiscard]] Head& head() { return head_; }
  [[nodiscard]] const Head& head() const { return head_; }

  [[nodiscard]] std::uint64_t boundary_bytes() const {
    return std::uint64_t{batch_.batch} * batch_.sequence * config_.width * size_of(ops_->compute());
  }
  [[nodiscard]] bool is_embedding(std::uint32_t block) const { return block == 0; }
  [[nodiscard]] bool is_head(std::uint32_t block) const {
    return block + 1 == layout_.blocks.size();
  }

  [[nodiscard]] Bytes workspace_bytes() const {
    return std::max(
        {layer_.workspace_bytes(), head_.workspace_bytes(), ops_->embedding_workspace(embedding_)});
  }

  [[nodiscard]] std::uint64_t constant_count() const {
    return config_.is_gpt2() ? 0 : std::uint64_t{batch_.sequence} * config_.head_dim;
  }
  [[nodiscard]] std::vector<float> constants() const {
    if (config_.is_gpt2()) return {};
    return rope_angles(rope_inverse_frequencies(config_), batch_.sequence);
  }

  void embed(const ForwardArguments& a) {
    const DType compute = ops_->compute();
    ops_->embedding_forward(
        embedding_, a.tokens, table_.in(a.parameters, compute),
        config_.is_gpt2() ? positions_.in(a.parameters, compute) : ConstTensor{}, a.output);
  }
  void embed_backward(const BackwardArguments& a) {
    ops_->embedding_backward(
        embedding_, a.tokens, a.boundary_gradient, table_.in(a.gradients, a.first),
        config_.is_gpt2() ? positions_.in(a.gradients, a.first) : Gradient{}, a.workspace);
  }
  /// A block's padding has no gradient; norms and updates run over it.
  void clear_padding(std::uint32_t block, offload::DeviceSpan<float> gradients, bool first) {
    const BlockLayout& layout = layout_.blocks[block];
    const std::uint64_t used = layout.parameters.value();
    if (first && gradients.size() > used) {
      ops_->fill_zero(gradients.subspan(used, gradients.size() - used));
    }
  }

 private:
  ModelConfig config_;
  BatchShape batch_;
  Ops* ops_;
  ModelLayout layout_;
  Layer layer_;
  Head head_;
  EmbeddingShape embedding_;
  TensorRange table_, positions_;
};

namespace {

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

Transformer::Transformer(const ModelConfig& config, BatchShape shape, DType compute, Ops& ops) {
  check_shape(config, shape, compute, ops);
  implementation_ = std::make_unique<Implementation>(config, shape, ops);
}
Transformer::~Transformer() = default;

const ModelLayout& Transformer::layout() const { return implementation_->layout(); }

Bytes Transformer::boundary_bytes() const { return Bytes{implementation_->boundary_bytes()}; }

Bytes Transformer::saved_bytes(std::uint32_t block) const {
  const Implementation& i = *implementation_;
  return i.is_embedding(block) || i.is_head(block) ? Bytes{} : i.layer().saved_bytes();
}

Bytes Transformer::workspace_bytes() const { return implementation_->workspace_bytes(); }

Bytes Transformer::constant_bytes() const {
  return Bytes{implementation_->constant_count() * sizeof(float)};
}

std::vector<float> Transformer::constants() const { return implementation_->constants(); }

void Transformer::bind_constants(offload::DeviceSpan<const float> constants) {
  SPILLWAY_ASSERT(constants.size() == implementation_->constant_count());
  implementation_->layer().bind_constants(constants);
}

double Transformer::forward_flops(std::uint32_t block) const {
  const Implementation& i = *implementation_;
  if (i.is_embedding(block)) return 0;
  return i.is_head(block) ? i.head().forward_flops() : i.layer().forward_flops();
}

double Transformer::backward_flops(std::uint32_t block) const {
  const Implementation& i = *implementation_;
  if (i.is_embedding(block)) return 0;
  return i.is_head(block) ? 2 * i.head().forward_flops() : i.layer().backward_flops();
}

void Transformer::forward(const ForwardArguments& arguments) {
  Implementation& i = *implementation_;
  SPILLWAY_ASSERT(!i.is_head(arguments.block));
  if (i.is_embedding(arguments.block)) {
    i.embed(arguments);
  } else {
    i.layer().forward(arguments);
  }
}

void Transformer::backward(const BackwardArguments& arguments) {
  Implementation& i = *implementation_;
  SPILLWAY_ASSERT(!i.is_head(arguments.block));
  if (i.is_embedding(arguments.block)) {
    i.embed_backward(arguments);
  } else {
    i.layer().backward(arguments);
  }
  i.clear_padding(arguments.block, arguments.gradients, arguments.first);
}

void Transformer::loss(const LossArguments& arguments) {
  Implementation& i = *implementation_;
  i.head().loss(arguments);
  if (arguments.boundary_gradient.empty()) return;
  const auto head = static_cast<std::uint32_t>(i.layout().blocks.size() - 1);
  i.clear_padding(head, arguments.gradients, arguments.first);
}

void Transformer::logits(const LogitsArguments& arguments) {
  implementation_->head().logits(arguments);
}

}  // namespace spillway::model
