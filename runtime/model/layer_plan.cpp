// What a layer needs: its tensors, prepared operations and memory.
#include <algorithm>

#include "runtime/model/layer.hpp"

namespace spillway::model {

Layer::Layer(const ModelConfig& config, BatchShape batch, const BlockLayout& block, Ops& ops)
    : LayerCore(config, batch, block, ops) {
  find_parameters(block);
  measure();
}

void Layer::find_parameters(const BlockLayout& block) {
  const bool gpt2 = config_.is_gpt2();
  const auto linear = [&](std::uint64_t in, std::uint64_t out, TensorRange weight,
                          std::optional<TensorRange> bias, bool residual) {
    SPILLWAY_ASSERT(weight.count == in * out && (!bias || bias->count == out));
    return Linear({.rows = tokens(),
                   .in = in,
                   .out = out,
                   .layout = gpt2 ? WeightLayout::in_out : WeightLayout::out_in,
                   .weight = weight,
                   .bias = bias,
                   .residual = residual},
                  *ops_);
  };
  const std::uint64_t width = config_.width;
  const std::uint64_t ffn = config_.ffn_width;
  if (gpt2) {
    qkv_ = linear(width, qkv_columns(), require_tensors(block, {"attn.c_attn.weight"}),
                  find_tensors(block, {"attn.c_attn.bias"}), false);
    attention_out_ = linear(q_columns(), width, require_tensors(block, {"attn.c_proj.weight"}),
                            find_tensors(block, {"attn.c_proj.bias"}), true);
    ffn_in_ = linear(width, ffn, require_tensors(block, {"mlp.c_fc.weight"}),
                     find_tensors(block, {"mlp.c_fc.bias"}), false);
    ffn_out_ = linear(ffn, width, require_tensors(block, {"mlp.c_proj.weight"}),
                      find_tensors(block, {"mlp.c_proj.bias"}), true);
    return;
  }
  qkv_ = linear(width, qkv_columns(),
                require_tensors(block, {"q_proj.weight", "k_proj.weight", "v_proj.weight"}),
                find_tensors(block, {"q_proj.bias", "k_proj.bias", "v_proj.bias"}), false);
  attention_out_ = linear(q_columns(), width, require_tensors(block, {"o_proj.weight"}),
                          find_tensors(block, {"o_proj.bias"}), true);
  ffn_in_ = linear(width, 2 * ffn, require_tensors(block, {"gate_proj.weight", "up_proj.weight"}),
                   find_tensors(block, {"gate_proj.bias", "up_proj.bias"}), false);
  ffn_out_ = linear(ffn, width, require_tensors(block, {"down_proj.weight"}),
                    find_tensors(block, {"down_proj.bias"}), true);
}

Layer::BackwardSpace Layer::carve_backward(Carver& carver) const {
  BackwardSpace space;
  space.common = carve_common(carver);
  space.normal_gradient = carver.elements(tokens() * config_.width);
  Carver attention = carver;
  space.activation = carver.elements(tokens() * config_.ffn_width);
  space.ffn_gradient = carver.elements(tokens() * ffn_columns());
  // gelu's gradient replaces the gradient of its result; the gated one has twice the columns.
  space.activation_gradient = config_.activation == Activation::silu
                                  ? carver.elements(tokens() * config_.ffn_width)
                                  : space.ffn_gradient;
  space.attention_gradient = attention.elements(tokens() * q_columns());
  space.qkv_gradient = attention.elements(tokens() * qkv_columns());
  if (attention.used() > carver.used()) carver = attention;
  return space;
}

void Layer::measure() {
  ops_workspace_ = std::max({ops_workspace_, qkv_->workspace(), attention_out_->workspace(),
                             ffn_in_->workspace(), ffn_out_->workspace()});
  Carver forward(ops_->compute());
  carve_common(forward);
  forward.elements(tokens() * config_.ffn_width);
  carve_saved(forward);  // where the caller keeps nothing
  Carver backward(ops_->compute());
  carve_backward(backward);
  workspace_bytes_ = std::max(forward.used(), backward.used());
}

double Layer::forward_flops() const {
  return qkv_->flops() + attention_out_->flops() + ffn_in_->flops() + ffn_out_->flops() +
         attention_flops();
}

double Layer::backward_flops() const {
  const double linear =
      qkv_->flops() + attention_out_->flops() + ffn_in_->flops() + ffn_out_->flops();
  return 2 * linear + 2.5 * attention_flops();  // five products instead of two
}

}  // namespace spillway::model
