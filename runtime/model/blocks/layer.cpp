#include "runtime/model/blocks/layer.hpp"

#include <ranges>

#include "runtime/base/error.hpp"

namespace spillway::model::blocks {

template <class Arguments>
ConstTensor Layer::input_of(Gemm gemm, bool same, const Arguments& a, const Saved& saved,
                            const Space& space) {
  switch (gemm) {
    case Gemm::qkv:
      if (part_.sequence) return a.normal;
      if (same) break;
      apply_norm(attention_norm_, a.shared, a.input, space.normal, space);
      break;
    case Gemm::attention_out: return saved.attention;
    case Gemm::ffn_in:
      if (part_.sequence) return a.normal;
      apply_norm(ffn_norm_, a.shared, middle(a.input, saved), space.normal, space);
      break;
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
      flow.out = halved() ? a.output : saved.middle;
      break;
    case Gemm::ffn_in: flow.out = saved.ffn; break;
    case Gemm::ffn_out:
      flow.residual = middle(a.input, saved);
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
  const Saved saved = allocate_saved(a.saved.empty() ? workspace : given, index);
  std::optional<Gemm> before;
  for (const Columns& part : parts_[index]) {
    const bool ends_block = part.gemm == Gemm::ffn_out || (halved() && shape(part.gemm).residual);
    if (ends_block && a.output.empty()) break;
    const std::uint64_t out = shape(part.gemm).out;
    const ConstTensor input = input_of(part.gemm, before == part.gemm, a, saved, space);
    before = part.gemm;
    const Flow flow = forward_flow(part.gemm, a, saved);
    Linear::ForwardArguments arguments{.matrices = a.parameters,
                                       .vectors = a.shared,
                                       .input = input,
                                       .residual = {},
                                       .out = columns(flow.out, out, part.first).data,
                                       .workspace = space.ops};
    if (part.linear.adds_residual()) {
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
      flow.input_gradient = gradients.sums.empty() ? gradients.normal : gradients.sums;
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
  const Gradients gradients = allocate_gradients(workspace, carried, space);
  // Backward reads what forward saved; laying it out needs a writable view of it.
  BumpAllocator given(ops_->compute(), {const_cast<std::byte*>(a.saved.address()), a.saved.size()});
  const Saved saved = allocate_saved(given, index);
  std::optional<Gemm> before;
  for (const Columns& part : std::views::reverse(parts_[index])) {
    backward_gemm(part, before == part.gemm, a, saved, gradients, space);
    before = part.gemm;
  }
}

void Layer::finish_backward(std::uint32_t index, const BackwardArguments& a) {
  SPILLWAY_ASSERT(halved());
  BumpAllocator workspace(ops_->compute(), a.workspace);
  const Space space = allocate_space(workspace);
  const Norm& norm = norm_of(parts_[index].front().gemm);
  apply_norm(norm, a.shared, a.input, space.normal, space);  // for its statistics
  const std::size_t bytes = norm_tokens() * config_.width * size_of(ops_->compute());
  backward_norm(norm, a, a.input, a.carried.subspan(0, bytes), space);
}

void Layer::normalize(std::uint32_t index, const NormalizeArguments& a) {
  SPILLWAY_ASSERT(part_.sequence);
  BumpAllocator workspace(ops_->compute(), a.workspace);
  const Space space = allocate_space(workspace);
  apply_norm(norm_of(parts_[index].front().gemm), a.shared, a.input, a.output, space);
}

void Layer::backward_bias(const WholeGemm& gemm, const BackwardArguments& a,
                          ConstTensor out_gradient, const Space& space) {
  std::uint64_t first = 0;
  for (const TensorRange& range : gemm.bias) {
    ops_->bias_gradient(tokens(), columns(out_gradient, gemm.out, first),
                        range.in(a.shared_gradients, a.first), space.ops);
    first += range.count;
  }
}

void Layer::backward_gemm(const Columns& part, bool same, const BackwardArguments& a,
                          const Saved& saved, const Gradients& gradients, const Space& space) {
  const Flow flow = backward_flow(part.gemm, a, gradients);
  const WholeGemm& gemm = shape(part.gemm);
  const ConstTensor out_gradient = columns(flow.out_gradient, gemm.out, part.first).data;
  const bool first = ends(part);  // backward begins with a gemm's last columns
  if (first) backward_bias(gemm, a, flow.out_gradient, space);
  // The gradient of the activation brings the activation along, which is then not computed anew.
  const bool brought = part.gemm == Gemm::ffn_out && begins(part);
  const ConstTensor input = brought ? space.activation : input_of(part.gemm, same, a, saved, space);
  part.linear.backward_input(a.parameters, out_gradient, flow.input_gradient, first, space.ops);
  if (brought) backward_operators(part.gemm, a, saved, gradients, space);
  part.linear.backward_weight(input, out_gradient, a.gradients, a.first, space.ops);
  if (begins(part) && !brought) backward_operators(part.gemm, a, saved, gradients, space);
}

void Layer::backward_operators(Gemm gemm, const BackwardArguments& a, const Saved& saved,
                               const Gradients& gradients, const Space& space) {
  if (halved() && !shape(gemm).residual) {  // the norm's is to come
    if (gemm == Gemm::qkv && !gradients.sums.empty()) {
      ops_->round_sums(gradients.sums.as<const float>(), gradients.normal);
    }
    return;
  }
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
