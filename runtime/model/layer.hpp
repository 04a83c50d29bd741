// One transformer layer, forward and backward, for every family: norm, attention, norm, MLP. The
// families differ in data only: which tensors there are and how the weights are stored. All layers
// of a model have the same shape, so one Layer serves them all.
#pragma once

#include <optional>

#include "runtime/model/carver.hpp"
#include "runtime/model/linear.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::model {

class Layer {
 public:
  Layer(const ModelConfig& config, BatchShape batch, const BlockLayout& block, Ops& ops);

  [[nodiscard]] Bytes saved_bytes() const { return saved_bytes_; }
  [[nodiscard]] Bytes workspace_bytes() const { return workspace_bytes_; }
  [[nodiscard]] double forward_flops() const;
  [[nodiscard]] double backward_flops() const;

  /// The tables of Transformer::constants in device memory.
  void bind_constants(offload::DeviceSpan<const float> constants) { angles_ = constants; }
  void forward(const ForwardArguments& arguments);
  void backward(const BackwardArguments& arguments);

 private:
  struct Norm {
    NormShape shape;
    TensorRange weight;
    std::optional<TensorRange> bias;
  };
  /// What backward needs of the forward pass. `View` is Tensor or ConstTensor.
  template <class View, class Floats>
  struct Saved {
    View qkv;        ///< [T, q | k | v]: rotated, or as projected where heads are normalized
    View attention;  ///< [T, heads * head_dim]
    Floats log_sum;  ///< [batch, heads, sequence]
    View middle;     ///< [T, W] input plus attention
    View ffn;        ///< [T, F] before gelu, or [T, gate | up]
  };
  using SavedOut = Saved<Tensor, offload::DeviceSpan<float>>;
  struct Common {
    Tensor normal;                          ///< [T, W] a norm's output
    offload::DeviceSpan<float> statistics;  ///< of a norm of any kind, [rows, 2]
    offload::DeviceSpan<float> k_statistics;
    Tensor heads;  ///< [T, q | k] normalized and rotated, where heads are normalized
    Tensor ops;    ///< workspace of one op
  };
  struct BackwardSpace {
    Common common;
    Tensor normal_gradient;
    // The MLP's part of backward, then over the same memory attention's.
    Tensor activation, activation_gradient, ffn_gradient;
    Tensor attention_gradient, qkv_gradient;
  };
  struct Heads3 {
    HeadRows<ConstTensor> q, k, v;
  };

  [[nodiscard]] std::uint64_t tokens() const;
  [[nodiscard]] std::uint64_t q_columns() const;
  [[nodiscard]] std::uint64_t kv_columns() const;
  [[nodiscard]] std::uint64_t qkv_columns() const { return q_columns() + 2 * kv_columns(); }
  [[nodiscard]] std::uint64_t ffn_columns() const;
  template <class View>
  [[nodiscard]] HeadRows<View> columns(View matrix, std::uint64_t stride,
                                       std::uint64_t first) const;

  void find_parameters(const BlockLayout& block);
  void make_plans();
  void measure();
  SavedOut carve_saved(Carver& carver) const;
  Common carve_common(Carver& carver) const;
  BackwardSpace carve_backward(Carver& carver) const;

  void apply_norm(const Norm& norm, ConstTensor parameters, ConstTensor input, const Common& space);
  /// Normalizes heads where the family does, rotates them, and says where q, k and v now are.
  Heads3 prepare_heads(ConstTensor parameters, ConstTensor qkv, const Common& space);
  void rotate(Tensor rows, std::uint64_t stride, RopeDirection direction);
  void backward_mlp(const BackwardArguments& a, const SavedOut& saved, const BackwardSpace& space);
  void backward_attention(const BackwardArguments& a, const SavedOut& saved,
                          const BackwardSpace& space);
  void backward_heads(const BackwardArguments& a, const SavedOut& saved,
                      const BackwardSpace& space);
  void backward_norm(const Norm& norm, const BackwardArguments& a, ConstTensor input,
                     const BackwardSpace& space);

  ModelConfig config_;
  BatchShape batch_;
  Ops* ops_;
  Norm attention_norm_, ffn_norm_;
  std::optional<Norm> q_norm_, k_norm_;
  std::optional<Linear> qkv_, attention_out_, ffn_in_, ffn_out_;
  ActivationShape activation_;
  AttentionPlan attention_;
  offload::DeviceSpan<const float> angles_;  ///< of rope; empty where positions are embedded
  Bytes ops_workspace_, saved_bytes_, workspace_bytes_;
};

}  // namespace spillway::model
