// FLOPs of a decoder-only model, as a speed in "model FLOPs" counts them. Pure.
#pragma once

namespace spillway::plan {

/// What FLOPs of a decoder-only model depend on.
struct DecoderShape {
  double layers = 0;
  double width = 0;
  double kv_width = 0;  ///< key/value heads times head size
  double mlp_width = 0;
  double vocabulary = 0;
  double sequence = 0;
  double query_width = 0;   ///< heads times head size; 0: as wide as the model
  double mlp_matrices = 3;  ///< gate, up and down; 2 without a gate
};

/// FLOPs per token of forward and backward of a causal model. Attention is halved for causality;
/// the embedding and recomputation are not counted.
[[nodiscard]] double flops_per_token(const DecoderShape& shape);

}  // namespace spillway::plan
