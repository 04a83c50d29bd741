#include "runtime/model/linear.hpp"

#include <algorithm>

namespace spillway::model {

Linear::Linear(const LinearShape& s, Ops& ops) : shape_(s), ops_(&ops) {
  const bool out_in = s.layout == WeightLayout::out_in;
  forward_ = ops.plan_matmul({.rows = s.rows,
                              .columns = s.out,
                              .inner = s.in,
                              .transpose_b = out_in,
                              .bias = s.bias.has_value(),
                              .residual = s.residual});
  input_ =
      ops.plan_matmul({.rows = s.rows, .columns = s.in, .inner = s.out, .transpose_b = !out_in});
  weight_ = ops.plan_matmul({.rows = out_in ? s.out : s.in,
                             .columns = out_in ? s.in : s.out,
                             .inner = s.rows,
                             .transpose_a = true,
                             .output = MatmulOutput::gradient});
  workspace_ = std::max({forward_.workspace, input_.workspace, weight_.workspace});
  if (s.bias) workspace_ = std::max(workspace_, ops.reduction_workspace(s.rows, s.out));
}

double Linear::flops() const {
  return 2.0 * static_cast<double>(shape_.rows) * static_cast<double>(shape_.in) *
         static_cast<double>(shape_.out);
}

void Linear::forward(ConstTensor parameters, ConstTensor input, ConstTensor residual, Tensor out,
                     Tensor workspace) {
  const DType compute = ops_->compute();
  ops_->matmul(forward_,
               {.a = input,
                .b = shape_.weight.in(parameters, compute),
                .bias = shape_.bias ? shape_.bias->in(parameters, compute) : ConstTensor{},
                .residual = residual,
                .out = out,
                .first = true,
                .workspace = workspace});
}

void Linear::backward_input(ConstTensor parameters, ConstTensor out_gradient, Tensor input_gradient,
                            Tensor workspace) {
  ops_->matmul(input_, {.a = out_gradient,
                        .b = shape_.weight.in(parameters, ops_->compute()),
                        .bias = {},
                        .residual = {},
                        .out = input_gradient,
                        .first = true,
                        .workspace = workspace});
}

void Linear::backward_parameters(ConstTensor input, ConstTensor out_gradient,
                                 offload::DeviceSpan<float> gradients, bool first,
                                 Tensor workspace) {
  const bool out_in = shape_.layout == WeightLayout::out_in;
  const Gradient weight = shape_.weight.in(gradients, first);
  ops_->matmul(weight_, {.a = out_in ? out_gradient : input,
                         .b = out_in ? input : out_gradient,
                         .bias = {},
                         .residual = {},
                         .out = weight.values.as<std::byte>(),
                         .first = first,
                         .workspace = workspace});
  if (shape_.bias) {
    ops_->bias_gradient(shape_.rows, out_gradient, shape_.bias->in(gradients, first), workspace);
  }
}

}  // namespace spillway::model
