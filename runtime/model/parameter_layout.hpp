// Where every named parameter lives: which block, at which element. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/units.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/tensor_part.hpp"

namespace spillway::model {

enum class Initial : std::uint8_t { normal, scaled_normal /* residual projections */, zeros, ones };

/// Columns of a matrix's rows, or elements of a vector.
struct ColumnRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

struct ParameterTensor {
  std::string name;                  ///< Hugging Face's, e.g. "model.layers.0.mlp.up_proj.weight"
  std::vector<std::uint64_t> shape;  ///< as in safetensors, row-major
  ElementCount first;                ///< in the block
  ElementCount count;                ///< in the block: all of the tensor, or a part of it
  Initial initial = Initial::normal;
  bool is_vector = false;  ///< biases, norm weights: not decayed by `decay: matrices`
  ElementCount skipped{};  ///< elements of the tensor before these rows, in other blocks
  std::vector<ColumnRange> columns{};  ///< of the rows, side by side in the block; none: all
  std::uint32_t number = 0;  ///< of the tensor in the model, in the order of the uncut layout
  /// Elements, counted from the tensor's first, that a rank of a tensor group computes with where
  /// it has all of the tensor; no count: all. Its gradients of the others are zero.
  ColumnRange used{};
  [[nodiscard]] ElementCount elements() const;  ///< of the whole tensor
  /// Elements of the block that a rank computes with.
  [[nodiscard]] ColumnRange used_in_block() const {
    if (used.count == 0) return {first.value(), count.value()};
    return {first.value() + used.first, used.count};
  }
};

struct BlockLayout {
  std::string name;                      ///< "embedding", "layer.0", ..., "head"
  std::vector<ParameterTensor> tensors;  ///< matrices first, then vectors; contiguous, no gaps
  ElementCount parameters;
  ElementCount padded_parameters;  ///< next multiple of kLeafParameters
  std::uint32_t layer = 0;         ///< 0: embedding; 1, 2, ...: transformer layers; last: head
  // All ranks of a tensor group have the same from `shared_first` on, a multiple of
  // kLeafParameters, and at the same place. From `partial_first` on, each computes its part of the
  // gradient.
  ElementCount shared_first{};
  ElementCount partial_first{};
};

/// Blocks [first, end) of a layout.
struct BlockRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
};

/// Lists blocks in forward order: embedding, each layer, head (final norm and, untied, lm_head).
/// Tensors that are used as one matrix are adjacent: q, k, v weights; gate and up weights; their
/// biases likewise. A tied head has no weight of its own: it uses the first tensor of block 0.
///
/// Cut (`operator_tile`), a layer's matrices become several blocks of whole rows, each with at most
/// that many parameters: a tensor may go on in the next block. All vectors of the model then lie in
/// block 0, which operators read beside the block that they run, and matrices alone in the others.
/// A tied head then has no block at all: its loss runs on those of the embedding.
///
/// For one rank of a tensor group, a layer is two blocks, attention and MLP, each with the rank's
/// part of its matrices, and each a layer of its own: a sum over the ranks lies between them.
struct ModelLayout {
  std::vector<BlockLayout> blocks;
  std::uint64_t operator_tile = 0;                ///< parameters; 0: not cut
  TensorPart part{};                              ///< whose blocks these are
  [[nodiscard]] ElementCount parameters() const;  ///< without padding
  /// Returns the blocks of `layer`, without the one that all layers of a cut model share.
  [[nodiscard]] BlockRange blocks_of(std::uint32_t layer) const;
  /// Returns the blocks that the loss runs on, one after the other.
  [[nodiscard]] BlockRange loss_blocks(const ModelConfig& config) const;
  /// Returns the layer number of the head.
  [[nodiscard]] std::uint32_t head_layer(const ModelConfig& config) const {
    return (part.cuts() ? 2 : 1) * config.layers + 1;
  }
};

/// Throws `Error{invalid_argument}` for an `operator_tile` below one row of the widest matrix, and
/// `Error{not_supported}` for a model that is not cut: GPT-2.
[[nodiscard]] ModelLayout make_layout(const ModelConfig& config, std::uint64_t operator_tile = 0);
/// Returns the layout of one part of a model that a tensor group shares out: of the whole model, if
/// there is one part. Throws `Error{invalid_argument}` as `config_of_part` does.
[[nodiscard]] ModelLayout make_layout(const ModelConfig& config, const TensorPart& part);
/// Returns the least `operator_tile` of a model: its longest row.
[[nodiscard]] std::uint64_t least_operator_tile(const ModelConfig& config);

}  // namespace spillway::model
