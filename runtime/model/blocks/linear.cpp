#include "runtime/model/blocks/linear.hpp"

#include <algorithm>

namespace spillway::model::blocks {

Linear::Linear(const LinearShape& s, Ops& ops) : shape_(s), ops_(&ops) {
  const bool out_in = s.layout == WeightLayout::out_in;
  GemmShape forward{.rows = s.rows / s.slices,
                    .columns = s.columns,
                    .inner = s.in,
                    .transpose_b = out_in,
                    .bias = s.bias.has_value(),
                    .residual = s.residual,
                    .out_stride = s.stride};
  forward_ = ops.plan_gemm(forward);
  if (s.slices > 1) {
    forward.bias = forward.residual = false;
    other_slice_ = ops.plan_gemm(forward);
  }
  input_ = ops.plan_gemm({.rows = s.rows,
                          .columns = s.in,
                          .inner = s.columns,
                          .transpose_b = !out_in,
                          .output = s.input_gradient,
                          .a_stride = s.stride});
  weight_ = ops.plan_gemm({.rows = out_in ? s.columns : s.in,
                           .columns = out_in ? s.in : s.columns,
                           .inner = s.rows,
                           .transpose_a = true,
                           .output = GemmOutput::gradient,
                           .a_stride = out_in ? s.stride : 0,
                           .b_stride = out_in ? 0 : s.stride});
  workspace_ =
      std::max({forward_.workspace, other_slice_.workspace, input_.workspace, weight_.workspace});
}

double Linear::flops() const {
  return 2.0 * static_cast<double>(shape_.rows) * static_cast<double>(shape_.in) *
         static_cast<double>(shape_.columns);
}

void Linear::forward(const ForwardArguments& a) const {
  const DType compute = ops_->compute();
  const std::uint64_t rows = shape_.rows / shape_.slices;
  const std::size_t read = rows * shape_.in * size_of(compute);
  const std::size_t written = rows * shape_.columns * size_of(compute);
  for (std::uint32_t slice = 0; slice < shape_.slices; ++slice) {
    const bool own = slice == shape_.own_slice;
    const bool has_bias = own && shape_.bias;
    const bool whole = shape_.slices == 1;
    ops_->gemm(own ? forward_ : other_slice_,
               {.a = whole ? a.input : a.input.subspan(slice * read, read),
                .b = shape_.weight.in(a.matrices, compute),
                .bias = has_bias ? shape_.bias->in(a.vectors, compute) : ConstTensor{},
                .residual = own ? a.residual : ConstTensor{},
                .out = whole ? a.out : a.out.subspan(slice * written, written),
                .first = true,
                .workspace = a.workspace});
  }
}

void Linear::backward_input(ConstTensor matrices, ConstTensor out_gradient, Tensor input_gradient,
                            bool first, Tensor workspace) const {
  ops_->gemm(input_, {.a = out_gradient,
                      .b = shape_.weight.in(matrices, ops_->compute()),
                      .bias = {},
                      .residual = {},
                      .out = input_gradient,
                      .first = first,
                      .workspace = workspace});
}

void Linear::backward_weight(ConstTensor input, ConstTensor out_gradient,
                             offload::DeviceSpan<float> gradients, bool first,
                             Tensor workspace) const {
  const bool out_in = shape_.layout == WeightLayout::out_in;
  ops_->gemm(weight_, {.a = out_in ? out_gradient : input,
                       .b = out_in ? input : out_gradient,
                       .bias = {},
                       .residual = {},
                       .out = shape_.weight.in(gradients, first).values.as<std::byte>(),
                       .first = first,
                       .workspace = workspace});
}

}  // namespace spillway::model::blocks
