#include "runtime/model/blocks/layer.hpp"

#include <ranges>

#include "runtime/base/error.hpp"

namespace spillway::model::blocks {

ConstTensor Layer::input_of(Gemm gemm, ConstTensor vectors, ConstTensor input, const Saved& saved,
                            const Space& space) {
  switch (gemm) {
    case Gemm::qkv: apply_norm(attention_norm_, vectors, input, space); break;
    case Gemm::attention_out: return saved.attention;
    case Gemm::ffn_in: apply_norm(ffn_norm_, vectors, saved.middle, space); break;
    case Gemm::ffn_out:
      ops_->activation_forward(activation_, saved.ffn, space.activation);
      return space.activation;
  }
  return space.normal;
}

Layer::Flow Layer::forward_flow(Gemm gemm, const ForwardArguments& a, const Saved& saved) const {
  Flow flow;
  switch (gemm) {
    case Gemm::qkv: flow.out = saved.qkv; break;
    case Gemm::attention_out:
      flow.residual = a.input;
      flow.out = saved.middle;
      break;
    case Gemm::ffn_in: flow.out = saved.ffn; break;
    case Gemm::ffn_out:
      flow.residual = saved.middle;
      flow.out = a.output;
      break;
  }
  return flow;
}

void Layer::forward(std::uint32_t index, const ForwardArguments& a) {
  BumpAllocator workspace(ops_->compute(), a.workspace);
  Space space = allocate_space(workspace);
  space.activation = workspace.elements(tokens() * config_.ffn_width);
  SPILLWAY_ASSERT(!cut_ || !a.saved.empty());  // its parts meet there
  BumpAllocator given(ops_->compute(), a.saved);
  const Saved saved = allocate_saved(a.saved.empty() ? workspace : given);
  for (const Columns& part : parts_[index]) {
    if (part.gemm == Gemm::ffn_out && a.output.empty()) break;
    const std::uint64_t out = shape(part.gemm).out;
    const ConstTensor input = input_of(part.gemm, a.shared, a.input, saved, space);
    const Flow flow = forward_flow(part.gemm, a, saved);
    Linear::ForwardArguments arguments{.matrices = a.parameters,
                                       .vectors = a.shared,
                                       .input = input,
                                       .residual = {},
                                       .out = columns(flow.out, out, part.first).data,
                                       .workspace = space.ops};
    if (shape(part.gemm).residual) {
      arguments.residual = columns(flow.residual, out, part.first).data;
    }
    part.linear.forward(arguments);
    if (part.gemm == Gemm::qkv && ends(part)) attend(a.shared, saved, space);
  }
}

Layer::Flow Layer::backward_flow(Gemm gemm, const BackwardArguments& a,
                                 const Gradients& gradients) const {
  Flow flow;
  switch (gemm) {
    case Gemm::qkv:
      flow.out_gradient = gradients.qkv;
      flow.input_gradient = gradients.normal;
      break;
    case Gemm::attention_out:
      flow.out_gradient = a.boundary_gradient;
      flow.input_gradient = gradients.attention;
      break;
    case Gemm::ffn_in:
      flow.out_gradient = gradients.ffn;
      flow.input_gradient = gradients.normal;
      break;
    case Gemm::ffn_out:
      flow.out_gradient = a.boundary_gradient;
      flow.input_gradient = gradients.activation;
      break;
  }
  return flow;
}

void Layer::backward(std::uint32_t index, const BackwardArguments& a) {
  BumpAllocator workspace(ops_->compute(), a.workspace);
  BumpAllocator carried(ops_->compute(), a.carried);
  Space space = allocate_space(workspace);
  const Gradients gradients = allocate_gradients(workspace, cut_ ? carried : workspace, space);
  // Backward reads what forward saved; laying it out needs a writable view of it.
  BumpAllocator given(ops_->compute(), {const_cast<std::byte*>(a.saved.address()), a.saved.size()});
  const Saved saved = allocate_saved(given);
  for (const Columns& part : std::views::reverse(parts_[index])) {
    backward_gemm(part, a, saved, gradients, space);
  }
}

void Layer::backward_gemm(const Columns& part, const BackwardArguments& a, const Saved& saved,
                          const Gradients& gradients, const Space& space) {
  const Flow flow = backward_flow(part.gemm, a, gradients);
  const WholeGemm& gemm = shape(part.gemm);
  const ConstTensor out_gradient = columns(flow.out_gradient, gemm.out, part.first).data;
  const bool first = ends(part);  // backward begins with a gemm's last columns
  if (first && gemm.bias) {
    ops_->bias_gradient(tokens(), flow.out_gradient, gemm.bias->in(a.shared_gradients, a.first),
                        space.ops);
  }
  // The gradient of the activation brings the activation along, which is then not computed anew.
  const bool brought = part.gemm == Gemm::ffn_out && begins(part);
  const ConstTensor input =
      brought ? space.activation : input_of(part.gemm, a.shared, a.input, saved, space);
  part.linear.backward_input(a.parameters, out_gradient, flow.input_gradient, first, space.ops);
  if (brought) backward_operators(part.gemm, a, saved, gradients, space);
  part.linear.backward_weight(input, out_gradient, a.gradients, a.first, space.ops);
  if (begins(part) && !brought) backward_operators(part.gemm, a, saved, gradients, space);
}

void Layer::backward_operators(Gemm gemm, const BackwardArguments& a, const Saved& saved,
                               const Gradients& gradients, const Space& space) {
  switch (gemm) {
    case Gemm::qkv:
      return backward_norm(attention_norm_, a, a.input, rounded(gradients.normal, space), space);
    case Gemm::attention_out:
      return backward_heads(a, saved, rounded(gradients.attention, space), gradients.qkv, space);
    case Gemm::ffn_in:
      return backward_norm(ffn_norm_, a, saved.middle, rounded(gradients.normal, space), space);
    case Gemm::ffn_out:
      ops_->activation_backward(activation_, {.input = saved.ffn,
                                              .out_gradient = rounded(gradients.activation, space),
                                              .input_gradient = gradients.ffn,
                                              .out = space.activation});
      return;
  }
}

ConstTensor Layer::rounded(Tensor sums, const Space& space) {
  if (!cut_ || ops_->compute() == DType::fp32) return sums;
  const auto floats = sums.as<const float>();
  const Tensor result = space.rounded.subspan(0, floats.size() * size_of(ops_->compute()));
  ops_->round_sums(floats, result);
  return result;
}

}  // namespace spillway::model::blocks
