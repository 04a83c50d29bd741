#include "runtime/model/tiled_layer.hpp"

#include <algorithm>
#include <ranges>

#include "runtime/base/error.hpp"

namespace spillway::model {

ConstTensor TiledLayer::input_of(const Part& part, ConstTensor vectors, ConstTensor input,
                                 const SavedOut& saved, const Space& space) {
  switch (part.product) {
    case Product::qkv: apply_norm(attention_norm_, vectors, input, space.common); break;
    case Product::attention_out: return saved.attention;
    case Product::ffn_in: apply_norm(ffn_norm_, vectors, saved.middle, space.common); break;
    case Product::ffn_out:
      ops_->activation_forward(activation_, saved.ffn, space.activation);
      return space.activation;
  }
  return space.common.normal;
}

void TiledLayer::multiply(const Part& part, ConstTensor parameters, ConstTensor vectors,
                          const Flow& flow, const Space& space) {
  const DType compute = ops_->compute();
  const std::uint64_t out = whole(part).out;
  MatmulArguments arguments;
  arguments.a = flow.input;
  arguments.b = part.weight.in(parameters, compute);
  if (whole(part).bias) {
    const TensorRange bias{whole(part).bias->first + part.first, part.columns};
    arguments.bias = bias.in(vectors, compute);
  }
  if (whole(part).residual) arguments.residual = columns(flow.residual, out, part.first).data;
  arguments.out = columns(flow.out, out, part.first).data;
  arguments.workspace = space.common.ops;
  ops_->matmul(part.forward, arguments);
}

void TiledLayer::forward(std::uint32_t tile, const ForwardArguments& a) {
  Carver carver(ops_->compute(), a.workspace);
  const Space space = carve_space(carver);
  Carver given(ops_->compute(), a.saved);
  const SavedOut saved = carve_saved(given);
  for (const Part& part : tiles_[tile]) {
    if (part.product == Product::ffn_out && a.output.empty()) break;
    Flow flow;
    flow.input = input_of(part, a.shared, a.input, saved, space);
    switch (part.product) {
      case Product::qkv: flow.out = saved.qkv; break;
      case Product::attention_out:
        flow.residual = a.input;
        flow.out = saved.middle;
        break;
      case Product::ffn_in: flow.out = saved.ffn; break;
      case Product::ffn_out:
        flow.residual = saved.middle;
        flow.out = a.output;
        break;
    }
    multiply(part, a.parameters, a.shared, flow, space);
    if (part.product == Product::qkv && ends(part)) attend(a.shared, saved, space.common);
  }
}

void TiledLayer::multiply_back(const Part& part, const BackwardArguments& a, const Flow& flow,
                               const Space& space) {
  const Tensor ops = space.common.ops;
  const bool first = ends(part);  // backward begins with a product's last columns
  const ConstTensor out_gradient = columns(flow.out_gradient, whole(part).out, part.first).data;
  const Gradient weight = part.weight.in(a.gradients, a.first);
  if (first && whole(part).bias) {
    ops_->bias_gradient(tokens(), flow.out_gradient,
                        whole(part).bias->in(a.shared_gradients, a.first), ops);
  }
  ops_->matmul(part.input_gradient, {.a = out_gradient,
                                     .b = part.weight.in(a.parameters, ops_->compute()),
                                     .bias = {},
                                     .residual = {},
                                     .out = flow.input_sum.as<std::byte>(),
                                     .first = first,
                                     .workspace = ops});
  ops_->matmul(part.weight_gradient, {.a = out_gradient,
                                      .b = flow.input,
                                      .bias = {},
                                      .residual = {},
                                      .out = weight.values.as<std::byte>(),
                                      .first = weight.first,
                                      .workspace = ops});
}

void TiledLayer::backward(std::uint32_t tile, const BackwardArguments& a) {
  Carver carver(ops_->compute(), a.workspace);
  const Space space = carve_space(carver);
  // Backward reads what forward saved; carving needs a writable view of it.
  Carver given(ops_->compute(), {const_cast<std::byte*>(a.saved.address()), a.saved.size()});
  const SavedOut saved = carve_saved(given);
  Carver carried_carver(ops_->compute(), a.carried);
  const Carried carried = carve_carried(carried_carver);
  BackwardArguments vectors = a;
  vectors.parameters = a.shared;
  vectors.gradients = a.shared_gradients;
  for (const Part& part : std::views::reverse(tiles_[tile])) {
    Flow flow;
    flow.input = input_of(part, a.shared, a.input, saved, space);
    switch (part.product) {
      case Product::qkv:
        flow.out_gradient = carried.qkv_gradient;
        flow.input_sum = carried.normal;
        break;
      case Product::attention_out:
        flow.out_gradient = a.boundary_gradient;
        flow.input_sum = carried.attention;
        break;
      case Product::ffn_in:
        flow.out_gradient = carried.ffn_gradient;
        flow.input_sum = carried.normal;
        break;
      case Product::ffn_out:
        flow.out_gradient = a.boundary_gradient;
        flow.input_sum = carried.activation;
        break;
    }
    multiply_back(part, a, flow, space);
    if (begins(part)) finish_backward(part, vectors, saved, carried, space);
  }
}

Tensor TiledLayer::round(offload::DeviceSpan<float> sums, const Space& space) {
  if (ops_->compute() == DType::fp32) return sums.as<std::byte>();
  const Tensor rounded = space.rounded.subspan(0, sums.size() * size_of(ops_->compute()));
  ops_->round_sums(sums, rounded);
  return rounded;
}

void TiledLayer::finish_backward(const Part& part, const BackwardArguments& vectors,
                                 const SavedOut& saved, const Carried& carried,
                                 const Space& space) {
  BackwardSpace parts;
  parts.common = space.common;
  switch (part.product) {
    case Product::qkv:
      parts.normal_gradient = round(carried.normal, space);
      return backward_norm(attention_norm_, vectors, vectors.input, parts);
    case Product::attention_out:
      parts.attention_gradient = round(carried.attention, space);
      parts.qkv_gradient = carried.qkv_gradient;
      return backward_heads(vectors, saved, parts);
    case Product::ffn_in:
      parts.normal_gradient = round(carried.normal, space);
      return backward_norm(ffn_norm_, vectors, saved.middle, parts);
    case Product::ffn_out:
      ops_->activation_backward(activation_, {.input = saved.ffn,
                                              .out_gradient = round(carried.activation, space),
                                              .input_gradient = carried.ffn_gradient,
                                              .out = space.activation});
      return;
  }
}

}  // namespace spillway::model
