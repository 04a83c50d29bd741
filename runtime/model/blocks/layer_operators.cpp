// A layer's operators between its gemms: norms, heads, attention.
#include "runtime/model/blocks/layer.hpp"

namespace spillway::model::blocks {

void Layer::apply_norm(const Norm& norm, ConstTensor vectors, ConstTensor input, Tensor out,
                       const Space& space) {
  const DType compute = ops_->compute();
  const std::uint64_t width = config_.width;
  ops_->norm_forward(norm.shape,
                     {.input = {input, width},
                      .weight = norm.weight.in(vectors, compute),
                      .bias = norm.bias ? norm.bias->in(vectors, compute) : ConstTensor{},
                      .out = {out, width},
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

Layer::Heads3 Layer::prepare_heads(ConstTensor vectors, ConstTensor qkv, const Space& space) {
  const std::uint64_t all = qkv_columns();
  const std::uint64_t k = q_columns();
  const HeadRows<ConstTensor> v = columns(qkv, all, k + kv_columns());
  if (!q_norm_) return {{qkv, all}, columns(qkv, all, k), v};
  const std::uint64_t both = q_columns() + kv_columns();
  const DType compute = ops_->compute();
  ops_->norm_forward(q_norm_->shape, {.input = {qkv, all},
                                      .weight = q_norm_->weight.in(vectors, compute),
                                      .bias = {},
                                      .out = {space.heads, both},
                                      .statistics = space.statistics});
  ops_->norm_forward(k_norm_->shape, {.input = columns(qkv, all, k),
                                      .weight = k_norm_->weight.in(vectors, compute),
                                      .bias = {},
                                      .out = columns(space.heads, both, k),
                                      .statistics = space.k_statistics});
  rotate(space.heads, both, RopeDirection::forward);
  const ConstTensor heads = space.heads;
  return {{heads, both}, columns(heads, both, k), v};
}

void Layer::attend(ConstTensor vectors, const Saved& saved, const Space& space) {
  if (!q_norm_) rotate(saved.qkv, qkv_columns(), RopeDirection::forward);
  const Heads3 heads = prepare_heads(vectors, saved.qkv, space);
  ops_->attention_forward(attention_, {.q = heads.q,
                                       .k = heads.k,
                                       .v = heads.v,
                                       .out = {saved.attention, q_columns()},
                                       .log_sum = saved.log_sum,
                                       .workspace = space.ops});
}

/// Adds a norm's part to the boundary gradient, which flows around it as the residual.
void Layer::backward_norm(const Norm& norm, const BackwardArguments& a, ConstTensor input,
                          ConstTensor gradient, const Space& space) {
  const std::uint64_t width = config_.width;
  const ConstTensor residual = a.boundary_gradient;
  ops_->norm_backward(
      norm.shape,
      {.input = {input, width},
       .weight = norm.weight.in(a.shared, ops_->compute()),
       .out_gradient = {gradient, width},
       .statistics = space.statistics,
       .residual_gradient = {residual, width},
       .input_gradient = {a.boundary_gradient, width},
       .weight_gradient = norm.weight.in(a.shared_gradients, a.first),
       .bias_gradient = norm.bias ? norm.bias->in(a.shared_gradients, a.first) : Gradient{},
       .workspace = space.ops});
}

void Layer::backward_heads(const BackwardArguments& a, const Saved& saved, ConstTensor gradient,
                           Tensor qkv_gradient, const Space& space) {
  const std::uint64_t all = qkv_columns();
  const std::uint64_t k = q_columns();
  const Heads3 heads = prepare_heads(a.shared, saved.qkv, space);
  const ConstTensor attention = saved.attention;
  ops_->attention_backward(attention_, {.q = heads.q,
                                        .k = heads.k,
                                        .v = heads.v,
                                        .out = {attention, q_columns()},
                                        .out_gradient = {gradient, q_columns()},
                                        .log_sum = saved.log_sum,
                                        .q_gradient = {qkv_gradient, all},
                                        .k_gradient = columns(qkv_gradient, all, k),
                                        .v_gradient = columns(qkv_gradient, all, k + kv_columns()),
                                        .workspace = space.ops});
  rotate(qkv_gradient, all, RopeDirection::backward);
  if (!q_norm_) return;
  const auto backward = [&](const Norm& norm, std::uint64_t first,
                            offload::DeviceSpan<const float> statistics) {
    const ConstTensor qkv = saved.qkv;
    const ConstTensor out_gradient = qkv_gradient;
    ops_->norm_backward(norm.shape, {.input = columns(qkv, all, first),
                                     .weight = norm.weight.in(a.shared, ops_->compute()),
                                     .out_gradient = columns(out_gradient, all, first),
                                     .statistics = statistics,
                                     .residual_gradient = {},
                                     .input_gradient = columns(qkv_gradient, all, first),
                                     .weight_gradient = norm.weight.in(a.shared_gradients, a.first),
                                     .bias_gradient = {},
                                     .workspace = space.ops});
  };
  backward(*q_norm_, 0, space.statistics);
  backward(*k_norm_, k, space.k_statistics);
}

}  // namespace spillway::model::blocks
