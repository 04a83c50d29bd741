// Where every named parameter lives: which block, at which element. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/units.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::model {

enum class Initial : std::uint8_t { normal, scaled_normal /* residual projections */, zeros, ones };

struct ParameterTensor {
  std::string name;                  ///< Hugging Face's, e.g. "model.layers.0.mlp.up_proj.weight"
  std::vector<std::uint64_t> shape;  ///< as in safetensors, row-major
  ElementCount first;                ///< in the block
  ElementCount count;
  Initial initial = Initial::normal;
  bool is_vector = false;  ///< biases, norm weights: not decayed by `decay: matrices`
};

struct BlockLayout {
  std::string name;                      ///< "embedding", "layer.0", ..., "head"
  std::vector<ParameterTensor> tensors;  ///< matrices first, then vectors; contiguous, no gaps
  ElementCount parameters;
  ElementCount padded_parameters;  ///< next multiple of kLeafParameters
};

/// Blocks in forward order: embedding, one a layer, head (final norm and, when untied, lm_head).
/// Tensors that are used as one matrix are adjacent: q, k, v weights; gate and up weights; their
/// biases likewise. A tied head has no weight of its own: it uses the first tensor of block 0.
struct ModelLayout {
  std::vector<BlockLayout> blocks;
  [[nodiscard]] ElementCount parameters() const;  ///< without padding
};

[[nodiscard]] ModelLayout make_layout(const ModelConfig& config);

}  // namespace spillway::model
