// What a layer needs: its tensors, prepared operations and memory.
#include <algorithm>

#include "runtime/model/layer.hpp"

namespace spillway::model {

Layer::Layer(const ModelConfig& config, BatchShape batch, const BlockLayout& block, Ops& ops)
    : config_(config), batch_(batch), ops_(&ops) {
  find_parameters(block);
  make_plans();
  measure();
}

std::uint64_t Layer::tokens() const { return std::uint64_t{batch_.batch} * batch_.sequence; }
std::uint64_t Layer::q_columns() const { return std::uint64_t{config_.heads} * config_.head_dim; }
std::uint64_t Layer::kv_columns() const {
  return std::uint64_t{config_.kv_heads} * config_.head_dim;
}
std::uint64_t Layer::ffn_columns() const {
  return config_.ffn_width * (config_.activation == Activation::silu ? 2ULL : 1ULL);
}

void Layer::find_parameters(const BlockLayout& block) {
  const bool gpt2 = config_.is_gpt2();
  const auto norm = [&](std::string_view weight, std::string_view bias) {
    return Norm{.shape = {.kind = gpt2 ? NormKind::layer : NormKind::rms,
                          .tokens = tokens(),
                          .heads = 1,
                          .width = config_.width,
                          .eps = static_cast<float>(config_.norm_eps)},
                .weight = require_tensors(block, {weight}),
                .bias = gpt2 ? find_tensors(block, {bias}) : std::nullopt};
  };
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
    attention_norm_ = norm("ln_1.weight", "ln_1.bias");
    ffn_norm_ = norm("ln_2.weight", "ln_2.bias");
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
  attention_norm_ = norm("input_layernorm.weight", "");
  ffn_norm_ = norm("post_attention_layernorm.weight", "");
  qkv_ = linear(width, qkv_columns(),
                require_tensors(block, {"q_proj.weight", "k_proj.weight", "v_proj.weight"}),
                find_tensors(block, {"q_proj.bias", "k_proj.bias", "v_proj.bias"}), false);
  attention_out_ = linear(q_columns(), width, require_tensors(block, {"o_proj.weight"}),
                          find_tensors(block, {"o_proj.bias"}), true);
  ffn_in_ = linear(width, 2 * ffn, require_tensors(block, {"gate_proj.weight", "up_proj.weight"}),
                   find_tensors(block, {"gate_proj.bias", "up_proj.bias"}), false);
  ffn_out_ = linear(ffn, width, require_tensors(block, {"down_proj.weight"}),
                    find_tensors(block, {"down_proj.bias"}), true);
  const auto head_norm = [&](std::string_view weight, std::uint32_t heads) -> std::optional<Norm> {
    const auto range = find_tensors(block, {weight});
    if (!range) return std::nullopt;
    Norm result{.shape = attention_norm_.shape, .weight = *range, .bias = std::nullopt};
    result.shape.heads = heads;
    result.shape.width = config_.head_dim;
    return result;
  };
  q_norm_ = head_norm("q_norm.weight", config_.heads);
  k_norm_ = head_norm("k_norm.weight", config_.kv_heads);
}

void Layer::make_plans() {
  activation_ = {.kind = config_.activation, .rows = tokens(), .columns = config_.ffn_width};
  // Normalized heads lie in a matrix of their own; the others where they were projected.
  const std::uint64_t all = qkv_columns();
  const std::uint64_t normalized = q_norm_ ? q_columns() + kv_columns() : all;
  attention_ = ops_->plan_attention({.batch = batch_.batch,
                                     .sequence = batch_.sequence,
                                     .heads = config_.heads,
                                     .kv_heads = config_.kv_heads,
                                     .head_dim = config_.head_dim,
                                     .strides = {.q = normalized,
                                                 .k = normalized,
                                                 .v = all,
                                                 .out = q_columns(),
                                                 .q_gradient = all,
                                                 .k_gradient = all,
                                                 .v_gradient = all}});
  const std::uint64_t norm_columns = 2 * std::max(config_.width, config_.head_dim);
  ops_workspace_ = std::max({qkv_->workspace(), attention_out_->workspace(), ffn_in_->workspace(),
                             ffn_out_->workspace(), attention_.workspace,
                             ops_->reduction_workspace(tokens(), norm_columns)});
}

Layer::SavedOut Layer::carve_saved(Carver& carver) const {
  return {.qkv = carver.elements(tokens() * qkv_columns()),
          .attention = carver.elements(tokens() * q_columns()),
          .log_sum = carver.floats(tokens() * config_.heads),
          .middle = carver.elements(tokens() * config_.width),
          .ffn = carver.elements(tokens() * ffn_columns())};
}

Layer::Common Layer::carve_common(Carver& carver) const {
  const bool normalizes = q_norm_.has_value();
  return {.normal = carver.elements(tokens() * config_.width),
          .statistics = carver.floats(tokens() * 2 * (normalizes ? config_.heads : 1)),
          .k_statistics = carver.floats(normalizes ? tokens() * 2 * config_.kv_heads : 0),
          .heads = carver.elements(normalizes ? tokens() * (q_columns() + kv_columns()) : 0),
          .ops = carver.bytes(ops_workspace_.value())};
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
  Carver saved(ops_->compute());
  carve_saved(saved);
  saved_bytes_ = saved.used();
  Carver forward(ops_->compute());
  carve_common(forward);
  forward.elements(tokens() * config_.ffn_width);
  carve_saved(forward);  // where the caller keeps nothing
  Carver backward(ops_->compute());
  carve_backward(backward);
  workspace_bytes_ = std::max(forward.used(), backward.used());
}

double Layer::forward_flops() const {
  // Causal: position p sees p + 1 keys; two products of head_dim multiply-adds for each.
  const double sequence = batch_.sequence;
  const double pairs = static_cast<double>(batch_.batch) * sequence * (sequence + 1) / 2;
  return qkv_->flops() + attention_out_->flops() + ffn_in_->flops() + ffn_out_->flops() +
         4.0 * pairs * static_cast<double>(q_columns());
}

double Layer::backward_flops() const {
  const double linear =
      qkv_->flops() + attention_out_->flops() + ffn_in_->flops() + ffn_out_->flops();
  const double attention = forward_flops() - linear;
  return 2 * linear + 2.5 * attention;  // five products instead of two
}

}  // namespace spillway::model
