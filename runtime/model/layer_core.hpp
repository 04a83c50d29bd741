// What the two ways of running a transformer layer share, whole or in tiles: its norms, attention
// heads and activation, what is saved for backward, and the memory that one operator at a time
// uses.
#pragma once

#include <optional>

#include "runtime/model/carver.hpp"
#include "runtime/model/tensor_range.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::model {

class LayerCore {
 public:
  [[nodiscard]] Bytes saved_bytes() const { return saved_bytes_; }
  [[nodiscard]] Bytes workspace_bytes() const { return workspace_bytes_; }
  /// The tables of Transformer::constants in device memory.
  void bind_constants(offload::DeviceSpan<const float> constants) { angles_ = constants; }

 protected:
  /// `block` has the layer's vectors.
  LayerCore(const ModelConfig& config, BatchShape batch, const BlockLayout& block, Ops& ops);
  ~LayerCore() = default;

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
  /// The columns of `matrix` from `first` on.
  template <class View>
  [[nodiscard]] HeadRows<View> columns(View matrix, std::uint64_t stride,
                                       std::uint64_t first) const {
    const std::uint64_t skipped = first * size_of(ops_->compute());
    return {matrix.subspan(skipped, matrix.size() - skipped), stride};
  }

  SavedOut carve_saved(Carver& carver) const;
  Common carve_common(Carver& carver) const;
  /// Multiplications of attention's two products, twice.
  [[nodiscard]] double attention_flops() const;

  void apply_norm(const Norm& norm, ConstTensor parameters, ConstTensor input, const Common& space);
  /// Normalizes heads where the family does, rotates them, and says where q, k and v now are.
  Heads3 prepare_heads(ConstTensor parameters, ConstTensor qkv, const Common& space);
  /// From the projected q, k and v to what attention makes of them.
  void attend(ConstTensor parameters, const SavedOut& saved, const Common& space);
  void backward_heads(const BackwardArguments& a, const SavedOut& saved,
                      const BackwardSpace& space);
  void backward_norm(const Norm& norm, const BackwardArguments& a, ConstTensor input,
                     const BackwardSpace& space);

  ModelConfig config_;
  BatchShape batch_;
  Ops* ops_;
  Norm attention_norm_, ffn_norm_;
  std::optional<Norm> q_norm_, k_norm_;
  ActivationShape activation_;
  AttentionPlan attention_;
  offload::DeviceSpan<const float> angles_;  ///< of rope; empty where positions are embedded
  Bytes ops_workspace_, saved_bytes_, workspace_bytes_;

 private:
  void rotate(Tensor rows, std::uint64_t stride, RopeDirection direction);
};

}  // namespace spillway::model
