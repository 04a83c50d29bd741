#include "runtime/model/layer.hpp"

namespace spillway::model {

template <class View>
HeadRows<View> Layer::columns(View matrix, std::uint64_t stride, std::uint64_t first) const {
  const std::uint64_t skipped = first * size_of(ops_->compute());
  return {matrix.subspan(skipped, matrix.size() - skipped), stride};
}

void Layer::apply_norm(const Norm& norm, ConstTensor parameters, ConstTensor input,
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

void Layer::rotate(Tensor rows, std::uint64_t stride, RopeDirection direction) {
  if (config_.is_gpt2()) return;
  ops_->rope({.heads = {rows, stride},
              .tokens = tokens(),
              .head_count = config_.heads + config_.kv_heads,
              .head_dim = config_.head_dim,
              .sequence = batch_.sequence,
              .angles = angles_,
              .direction = direction});
}

Layer::Heads3 Layer::prepare_heads(ConstTensor parameters, ConstTensor qkv, const Common& space) {
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

void Layer::forward(const ForwardArguments& a) {
  Carver carver(ops_->compute(), a.workspace);
  const Common space = carve_common(carver);
  const Tensor activation = carver.elements(tokens() * config_.ffn_width);
  Carver given(ops_->compute(), a.saved);
  const SavedOut saved = carve_saved(a.saved.empty() ? carver : given);

  apply_norm(attention_norm_, a.parameters, a.input, space);
  qkv_->forward(a.parameters, space.normal, {}, saved.qkv, space.ops);
  if (!q_norm_) rotate(saved.qkv, qkv_columns(), RopeDirection::forward);
  const Heads3 heads = prepare_heads(a.parameters, saved.qkv, space);
  ops_->attention_forward(attention_, {.q = heads.q,
                                       .k = heads.k,
                                       .v = heads.v,
                                       .out = {saved.attention, q_columns()},
                                       .log_sum = saved.log_sum,
                                       .workspace = space.ops});
  attention_out_->forward(a.parameters, saved.attention, a.input, saved.middle, space.ops);

  apply_norm(ffn_norm_, a.parameters, saved.middle, space);
  ffn_in_->forward(a.parameters, space.normal, {}, saved.ffn, space.ops);
  ops_->activation_forward(activation_, saved.ffn, activation);
  ffn_out_->forward(a.parameters, activation, saved.middle, a.output, space.ops);
}

void Layer::backward(const BackwardArguments& a) {
  Carver carver(ops_->compute(), a.workspace);
  const BackwardSpace space = carve_backward(carver);
  // Backward reads what forward saved; carving needs a writable view of it.
  Carver given(ops_->compute(), {const_cast<std::byte*>(a.saved.address()), a.saved.size()});
  const SavedOut saved = carve_saved(given);
  backward_mlp(a, saved, space);
  backward_attention(a, saved, space);
}

/// Adds a norm's part to the boundary gradient, which flows around it as the residual.
void Layer::backward_norm(const Norm& norm, const BackwardArguments& a, ConstTensor input,
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

void Layer::backward_mlp(const BackwardArguments& a, const SavedOut& saved,
                         const BackwardSpace& space) {
  const Tensor ops = space.common.ops;
  ffn_out_->backward_input(a.parameters, a.boundary_gradient, space.activation_gradient, ops);
  ops_->activation_backward(activation_, {.input = saved.ffn,
                                          .out_gradient = space.activation_gradient,
                                          .input_gradient = space.ffn_gradient,
                                          .out = space.activation});
  ffn_out_->backward_parameters(space.activation, a.boundary_gradient, a.gradients, a.first, ops);
  apply_norm(ffn_norm_, a.parameters, saved.middle, space.common);
  ffn_in_->backward_parameters(space.common.normal, space.ffn_gradient, a.gradients, a.first, ops);
  ffn_in_->backward_input(a.parameters, space.ffn_gradient, space.normal_gradient, ops);
  backward_norm(ffn_norm_, a, saved.middle, space);
}

void Layer::backward_attention(const BackwardArguments& a, const SavedOut& saved,
                               const BackwardSpace& space) {
  const Tensor ops = space.common.ops;
  attention_out_->backward_input(a.parameters, a.boundary_gradient, space.attention_gradient, ops);
  attention_out_->backward_parameters(saved.attention, a.boundary_gradient, a.gradients, a.first,
                                      ops);
  backward_heads(a, saved, space);
  apply_norm(attention_norm_, a.parameters, a.input, space.common);
  qkv_->backward_parameters(space.common.normal, space.qkv_gradient, a.gradients, a.first, ops);
  qkv_->backward_input(a.parameters, space.qkv_gradient, space.normal_gradient, ops);
  backward_norm(attention_norm_, a, a.input, space);
}

void Layer::backward_heads(const BackwardArguments& a, const SavedOut& saved,
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
