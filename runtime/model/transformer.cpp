#include "runtime/model/transformer.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"
#include "runtime/model/ops.hpp"
#include "runtime/model/rope_frequencies.hpp"
#include "runtime/model/transformer_body.hpp"

namespace spillway::model {
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

Transformer::Transformer(const ModelConfig& config, BatchShape shape, DType compute, Ops& ops,
                         std::uint64_t operator_tile)
    : config_(config), batch_(shape), ops_(&ops) {
  check_shape(config, shape, compute, ops);
  layout_ = make_layout(config, operator_tile);
  body_ = operator_tile > 0 ? make_tiled_model(config_, shape, layout_, ops)
                            : make_whole_model(config_, shape, layout_, ops);
}
Transformer::~Transformer() = default;

const ModelLayout& Transformer::layout() const { return layout_; }

Bytes Transformer::boundary_bytes() const {
  return Bytes{std::uint64_t{batch_.batch} * batch_.sequence * config_.width *
               size_of(ops_->compute())};
}

Bytes Transformer::saved_bytes(std::uint32_t block) const { return body_->saved_bytes(block); }
Bytes Transformer::carried_bytes() const { return body_->carried_bytes(); }
bool Transformer::feeds_backward(std::uint32_t block) const { return body_->feeds_backward(block); }
Bytes Transformer::workspace_bytes() const { return body_->workspace_bytes(); }

Bytes Transformer::constant_bytes() const {
  const std::uint64_t angles =
      config_.is_gpt2() ? 0 : std::uint64_t{batch_.sequence} * config_.head_dim;
  return Bytes{angles * sizeof(float)};
}

std::vector<float> Transformer::constants() const {
  if (config_.is_gpt2()) return {};
  return rope_angles(rope_inverse_frequencies(config_), batch_.sequence);
}

void Transformer::bind_constants(offload::DeviceSpan<const float> constants) {
  SPILLWAY_ASSERT(constants.size() * sizeof(float) == constant_bytes().value());
  body_->bind_constants(constants);
}

double Transformer::forward_flops(std::uint32_t block) const { return body_->forward_flops(block); }
double Transformer::backward_flops(std::uint32_t block) const {
  return body_->backward_flops(block);
}

void Transformer::forward(const ForwardArguments& arguments) { body_->forward(arguments); }
void Transformer::backward(const BackwardArguments& arguments) { body_->backward(arguments); }
void Transformer::loss(const LossArguments& arguments) { body_->loss(arguments); }
void Transformer::logits(const LogitsArguments& arguments) { body_->logits(arguments); }

}  // namespace spillway::model
