// Linear: columns of a linear map y = x W (+ bias) (+ residual), with its two gradients. A part of
// a layer has some columns of y, or all of them.
#pragma once

#include <optional>

#include "runtime/model/blocks/tensor_range.hpp"

namespace spillway::model::blocks {

enum class WeightLayout : std::uint8_t {
  out_in,  ///< [out, in], torch.nn.Linear
  in_out,  ///< [in, out], GPT-2's Conv1D
};

struct LinearShape {
  std::uint64_t rows = 0;
  std::uint64_t in = 0;
  std::uint64_t columns = 0;  ///< of y, which this part has
  std::uint64_t stride = 0;   ///< from one row of y to the next, in elements; 0: `columns`
  WeightLayout layout = WeightLayout::out_in;
  TensorRange weight;               ///< in the part's matrices
  std::optional<TensorRange> bias;  ///< of these columns, in the layer's vectors
  bool residual = false;            ///< forward adds a tensor that is shaped as y
  /// Rows are in so many slices, of which `own_slice` alone has bias and residual, which is then
  /// as long as a slice.
  std::uint32_t slices = 1;
  std::uint32_t own_slice = 0;
  /// `gradient` where several parts add to x's gradient in fp32.
  GemmOutput input_gradient = GemmOutput::compute;
};

class Linear {
 public:
  Linear(const LinearShape& shape, Ops& ops);

  [[nodiscard]] std::uint64_t columns() const { return shape_.columns; }
  [[nodiscard]] bool adds_residual() const { return shape_.residual; }
  /// Bytes that the largest of the calls below needs.
  [[nodiscard]] Bytes workspace() const { return workspace_; }
  /// FLOPs of the forward gemm; each gradient costs the same.
  [[nodiscard]] double flops() const;

  struct ForwardArguments {
    ConstTensor matrices, vectors;  ///< parameters
    ConstTensor input, residual;
    Tensor out;  ///< from this part's first column on, as `residual` and `out_gradient`
    Tensor workspace;
  };
  void forward(const ForwardArguments& arguments) const;
  /// Makes input_gradient = out_gradient W^T, which is added to fp32 sums unless `first`.
  void backward_input(ConstTensor matrices, ConstTensor out_gradient, Tensor input_gradient,
                      bool first, Tensor workspace) const;
  void backward_weight(ConstTensor input, ConstTensor out_gradient,
                       offload::DeviceSpan<float> gradients, bool first, Tensor workspace) const;

 private:
  LinearShape shape_;
  Ops* ops_;
  GemmPlan forward_, other_slice_, input_, weight_;
  Bytes workspace_;
};

}  // namespace spillway::model::blocks
