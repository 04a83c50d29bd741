// A linear map of the model: y = x W (+ bias) (+ residual), with its two gradients.
#pragma once

#include <optional>

#include "runtime/model/tensor_range.hpp"

namespace spillway::model {

enum class WeightLayout : std::uint8_t {
  out_in,  ///< [out, in], torch.nn.Linear
  in_out,  ///< [in, out], GPT-2's Conv1D
};

struct LinearShape {
  std::uint64_t rows = 0;
  std::uint64_t in = 0;
  std::uint64_t out = 0;
  WeightLayout layout = WeightLayout::out_in;
  TensorRange weight;
  std::optional<TensorRange> bias;
  bool residual = false;  ///< forward adds a [rows, out] tensor
};

class Linear {
 public:
  Linear(const LinearShape& shape, Ops& ops);

  /// Of the largest of the calls below.
  [[nodiscard]] Bytes workspace() const { return workspace_; }
  [[nodiscard]] double flops() const;  ///< of the forward product; each gradient costs the same

  void forward(ConstTensor parameters, ConstTensor input, ConstTensor residual, Tensor out,
               Tensor workspace);
  /// input_gradient = out_gradient W^T
  void backward_input(ConstTensor parameters, ConstTensor out_gradient, Tensor input_gradient,
                      Tensor workspace);
  /// The weight's and the bias's.
  void backward_parameters(ConstTensor input, ConstTensor out_gradient,
                           offload::DeviceSpan<float> gradients, bool first, Tensor workspace);

 private:
  LinearShape shape_;
  Ops* ops_;
  MatmulPlan forward_, input_, weight_;
  Bytes workspace_;
};

}  // namespace spillway::model
