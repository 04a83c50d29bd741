#include "runtime/model/layer.hpp"

namespace spillway::model {

void Layer::forward(const ForwardArguments& a) {
  Carver carver(ops_->compute(), a.workspace);
  const Common space = carve_common(carver);
  const Tensor activation = carver.elements(tokens() * config_.ffn_width);
  Carver given(ops_->compute(), a.saved);
  const SavedOut saved = carve_saved(a.saved.empty() ? carver : given);

  apply_norm(attention_norm_, a.parameters, a.input, space);
  qkv_->forward(a.parameters, space.normal, {}, saved.qkv, space.ops);
  attend(a.parameters, saved, space);
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

}  // namespace spillway::model
