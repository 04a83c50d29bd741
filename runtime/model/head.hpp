// The head block: final norm, vocabulary projection, cross-entropy with its gradient, logits.
// The projection runs in chunks of tokens, so that logits take chunk x vocabulary.
#pragma once

#include <optional>

#include "runtime/model/carver.hpp"
#include "runtime/model/head_chunk.hpp"
#include "runtime/model/tensor_range.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::model {

class Head {
 public:
  Head(const ModelConfig& config, BatchShape batch, const BlockLayout& block, Ops& ops);

  [[nodiscard]] Bytes workspace_bytes() const { return workspace_bytes_; }
  [[nodiscard]] double forward_flops() const;

  void loss(const LossArguments& arguments);
  void logits(const Transformer::LogitsArguments& arguments);

 private:
  struct Space {
    Tensor normal, normal_gradient;
    offload::DeviceSpan<float> statistics, logits;
    Tensor logits_gradient;
    Tensor ops;
  };

  [[nodiscard]] std::uint64_t tokens() const;
  Space carve(Carver& carver) const;
  void apply_norm(NormShape shape, ConstTensor parameters, HeadRows<ConstTensor> input,
                  const Space& space);
  [[nodiscard]] ConstTensor weight(ConstTensor parameters, ConstTensor tied) const;
  void backward_chunk(const LossArguments& a, const Space& space, std::uint64_t first,
                      std::uint64_t rows);
  void backward_norm(const LossArguments& a, const Space& space);

  ModelConfig config_;
  BatchShape batch_;
  Ops* ops_;
  NormShape norm_;
  TensorRange norm_weight_;
  std::optional<TensorRange> norm_bias_;
  std::optional<TensorRange> projection_;  ///< absent: tied
  std::uint64_t chunk_ = 0;
  ChunkPlans full_, tail_;
  MatmulPlan last_positions_;
  Bytes ops_workspace_, workspace_bytes_;
};

}  // namespace spillway::model
