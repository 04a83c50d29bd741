#include "runtime/model/layer_core.hpp"

#include <algorithm>

namespace spillway::model {

LayerCore::LayerCore(const ModelConfig& config, BatchShape batch, const BlockLayout& block,
                     Ops& ops)
    : config_(config), batch_(batch), ops_(&ops) {
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
  attention_norm_ = gpt2 ? norm("ln_1.weight", "ln_1.bias") : norm("input_layernorm.weight", "");
  ffn_norm_ = gpt2 ? norm("ln_2.weight", "ln_2.bias") : norm("post_attention_layernorm.weight", "");
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
  ops_workspace_ =
      std::max(attention_.workspace, ops_->reduction_workspace(tokens(), norm_columns));
  Carver saved(ops_->compute());
  carve_saved(saved);
  saved_bytes_ = saved.used();
}

std::uint64_t LayerCore::tokens() const { return std::uint64_t{batch_.batch} * batch_.sequence; }
std::uint64_t LayerCore::q_columns() const {
  return std::uint64_t{config_.heads} * config_.head_dim;
}
std::uint64_t LayerCore::kv_columns() const {
  return std::uint64_t{config_.kv_heads} * config_.head_dim;
}
std::uint64_t LayerCore::ffn_columns() const {
  return config_.ffn_width * (config_.activation == Activation::silu ? 2ULL : 1ULL);
}

LayerCore::SavedOut LayerCore::carve_saved(Carver& carver) const {
  return {.qkv = carver.elements(tokens() * qkv_columns()),
          .attention = carver.elements(tokens() * q_columns()),
          .log_sum = carver.floats(tokens() * config_.heads),
          .middle = carver.elements(tokens() * config_.width),
          .ffn = carver.elements(tokens() * ffn_columns())};
}

LayerCore::Common LayerCore::carve_common(Carver& carver) const {
  const bool normalizes = q_norm_.has_value();
  return {.normal = carver.elements(tokens() * config_.width),
          .statistics = carver.floats(tokens() * 2 * (normalizes ? config_.heads : 1)),
          .k_statistics = carver.floats(normalizes ? tokens() * 2 * config_.kv_heads : 0),
          .heads = carver.elements(normalizes ? tokens() * (q_columns() + kv_columns()) : 0),
          .ops = carver.bytes(ops_workspace_.value())};
}

double LayerCore::attention_flops() const {
  // Causal: position p sees p + 1 keys; two products of head_dim multiply-adds for each.
  const double sequence = batch_.sequence;
  const double pairs = static_cast<double>(batch_.batch) * sequence * (sequence + 1) / 2;
  return 4.0 * pairs * static_cast<double>(q_columns());
}

void LayerCore::apply_norm(const Norm& norm, ConstTensor parameters, ConstTensor input,
                           const Common& space) {
  const DType compute = ops_->compute();
  const std::uint64_t width = config_.width;
  ops_->norm_forward(norm.shape,
                     {.input = {input, width},
                      .weight = norm.weight.in(parameters, compute),
                      .bias = norm.bias ? norm.bias->in(parameters, compute) : ConstTensor{},
                      .out = {space.normal, width},
                      .statistics = space.statistics});
}

void LayerCore::rotate(Tensor rows, std::uint64_t stride, RopeDirection direction) {
  if (config_.is_gpt2()) return;
  ops_->rope({.heads = {rows, stride},
              .tokens = tokens(),
              .head_count = config_.heads + config_.kv_heads,
              .head_dim = config_.head_dim,
              .sequence = batch_.sequence,
              .angles = angles_,
              .direction = direction});
}

LayerCore::Heads3 LayerCore::prepare_heads(ConstTensor parameters, ConstTensor qkv,
                                           const Common& space) {
  const std::uint64_t all = qkv_columns();
  const std::uint64_t k = q_columns();
  const HeadRows<ConstTensor> v = columns(qkv, all, k + kv_columns());
  if (!q_norm_) return {{qkv, all}, columns(qkv, all, k), v};
  const std::uint64_t both = q_columns() + kv_columns();
  const DType compute = ops_->compute();
  ops_->norm_forward(q_norm_->shape, {.input = {qkv, all},
                                      .weight = q_norm_->weight.in(parameters, compute),
                                      .bias = {},
                                      .out = {space.heads, both},
                                      .statistics = space.statistics});
  ops_->norm_forward(k_norm_->shape, {.input = columns(qkv, all, k),
                                      .weight = k_norm_->weight.in(parameters, compute),
                                      .bias = {},
                                      .out = columns(space.heads, both, k),
                                      .statistics = space.k_statistics});
  rotate(space.heads, both, RopeDirection::forward);
  const ConstTensor heads = space.heads;
  return {{heads, both}, columns(heads, both, k), v};
}

void LayerCore::attend(ConstTensor parameters, const SavedOut& saved, const Common& space) {
  if (!q_norm_) rotate(saved.qkv, qkv_columns(), RopeDirection::forward);
  const Heads3 heads = prepare_heads(parameters, saved.qkv, space);
  ops_->attention_forward(attention_, {.q = heads.q,
                                       .k = heads.k,
                                       .v = heads.v,
                                       .out = {saved.attention, q_columns()},
                                       .log_sum = saved.log_sum,
                                       .workspace = space.ops});
}

/// Adds a norm's part to the boundary gradient, which flows around it as the residual.
void LayerCore::backward_norm(const Norm& norm, const BackwardArguments& a, ConstTensor input,
                              const BackwardSpace& space) {
  const std::uint64_t width = config_.width;
  const ConstTensor residual = a.boundary_gradient;
  const ConstTensor out_gradient = space.normal_gradient;
  ops_->norm_backward(
      norm.shape, {.input = {input, width},
                   .weight = norm.weight.in(a.parameters, ops_->compute()),
                   .out_gradient = {out_gradient, width},
                   .statistics = space.common.statistics,
                   .residual_gradient = {residual, width},
                   .input_gradient = {a.boundary_gradient, width},
                   .weight_gradient = norm.weight.in(a.gradients, a.first),
                   .bias_gradient = norm.bias ? norm.bias->in(a.gradients, a.first) : Gradient{},
                   .workspace = space.common.ops});
}

void LayerCore::backward_heads(const BackwardArguments& a, const SavedOut& saved,
                               const BackwardSpace& space) {
  const std::uint64_t all = qkv_columns();
  const std::uint64_t k = q_columns();
  const Tensor gradient = space.qkv_gradient;
  const Heads3 heads = prepare_heads(a.parameters, saved.qkv, space.common);
  const ConstTensor attention = saved.attention;
  const ConstTensor attention_gradient = space.attention_gradient;
  ops_->attention_backward(attention_, {.q = heads.q,
                                        .k = heads.k,
                                        .v = heads.v,
                                        .out = {attention, q_columns()},
                                        .out_gradient = {attention_gradient, q_columns()},
                                        .log_sum = saved.log_sum,
                                        .q_gradient = {gradient, all},
                                        .k_gradient = columns(gradient, all, k),
                                        .v_gradient = columns(gradient, all, k + kv_columns()),
                                        .workspace = space.common.ops});
  rotate(gradient, all, RopeDirection::backward);
  if (!q_norm_) return;
  const auto backward = [&](const Norm& norm, std::uint64_t first,
                            offload::DeviceSpan<const float> statistics) {
    const ConstTensor qkv = saved.qkv;
    const ConstTensor out_gradient = gradient;
    ops_->norm_backward(norm.shape, {.input = columns(qkv, all, first),
                                     .weight = norm.weight.in(a.parameters, ops_->compute()),
                                     .out_gradient = columns(out_gradient, all, first),
                                     .statistics = statistics,
                                     .residual_gradient = {},
                                     .input_gradient = columns(gradient, all, first),
                                     .weight_gradient = norm.weight.in(a.gradients, a.first),
                                     .bias_gradient = {},
                                     .workspace = space.common.ops});
  };
  backward(*q_norm_, 0, space.common.statistics);
  backward(*k_norm_, k, space.common.k_statistics);
}

}  // namespace spillway::model
