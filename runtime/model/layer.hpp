// One transformer layer, forward and backward, for every family: norm, attention, norm, MLP. The
// families differ in data only: which tensors there are and how the weights are stored. All layers
// of a model have the same shape, so one Layer serves them all.
#pragma once

#include "runtime/model/layer_core.hpp"
#include "runtime/model/linear.hpp"

namespace spillway::model {

class Layer final : public LayerCore {
 public:
  Layer(const ModelConfig& config, BatchShape batch, const BlockLayout& block, Ops& ops);

  [[nodiscard]] double forward_flops() const;
  [[nodiscard]] double backward_flops() const;

  void forward(const ForwardArguments& arguments);
  void backward(const BackwardArguments& arguments);

 private:
  void find_parameters(const BlockLayout& block);
  void measure();
  BackwardSpace carve_backward(Carver& carver) const;
  void backward_mlp(const BackwardArguments& a, const SavedOut& saved, const BackwardSpace& space);
  void backward_attention(const BackwardArguments& a, const SavedOut& saved,
                          const BackwardSpace& space);

  std::optional<Linear> qkv_, attention_out_, ffn_in_, ffn_out_;
};

}  // namespace spillway::model
