// Row-wise operations of Ops as data: norms, rotary embedding, activations, embedding, loss and
// sums. Each says what it reads and writes; an implementation of Ops runs any of them (`Ops::run`).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "offload/device_span.hpp"
#include "runtime/base/host_device.hpp"
#include "runtime/base/units.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::model {

using Tensor = offload::DeviceSpan<std::byte>;             ///< elements of C, written
using ConstTensor = offload::DeviceSpan<const std::byte>;  ///< elements of C, read
using Tokens = offload::DeviceSpan<const std::int32_t>;

/// A gradient of a parameter: fp32, overwritten by the first micro-batch, then added to.
struct Gradient {
  offload::DeviceSpan<float> values;
  bool first = false;
};

/// Views heads side by side in the rows of a matrix: head h of token t starts at element t * stride
/// + h * head_dim of `data`.
template <class View>
struct HeadRows {
  View data;
  std::uint64_t stride = 0;
};

// --- normalization of rows of `width` elements

enum class NormKind : std::uint8_t { layer, rms };

/// Has `tokens * heads` rows; row (t, h) starts at element t * stride + h * width, stride per view.
struct NormShape {
  NormKind kind = NormKind::layer;
  std::uint64_t tokens = 0;
  std::uint64_t heads = 1;
  std::uint64_t width = 0;
  float eps = 1e-5F;
  [[nodiscard]] std::uint64_t rows() const { return tokens * heads; }
};

struct NormForwardArguments {
  HeadRows<ConstTensor> input;
  ConstTensor weight;
  ConstTensor bias;  ///< empty: none
  HeadRows<Tensor> out;
  offload::DeviceSpan<float> statistics;  ///< [rows, 2] mean (0 for rms) and 1/deviation, out
};

struct NormBackwardArguments {
  HeadRows<ConstTensor> input;
  ConstTensor weight;
  HeadRows<ConstTensor> out_gradient;
  offload::DeviceSpan<const float> statistics;  ///< as forward wrote them
  HeadRows<ConstTensor> residual_gradient;      ///< added to the input's gradient; empty: none
  HeadRows<Tensor> input_gradient;              ///< may be one of the gradients read
  Gradient weight_gradient;
  Gradient bias_gradient;  ///< empty: no bias
  Tensor workspace;        ///< reduction_workspace(tokens, 2 * width)
};

// --- rotary position embedding, HF's rotate_half convention

enum class RopeDirection : std::uint8_t { forward, backward };

struct RopeArguments {
  HeadRows<Tensor> heads;  ///< rotated in place
  std::uint64_t tokens = 0;
  std::uint32_t head_count = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t sequence = 0;               ///< position of token t is t % sequence
  offload::DeviceSpan<const float> angles;  ///< [sequence, 2, head_dim / 2] cosines, sines
  RopeDirection direction = RopeDirection::forward;
};

// --- An activation: gelu maps [rows, columns] to [rows, columns]; silu maps [rows, 2 * columns] of
// gate | up to silu(gate) * up.

struct ActivationShape {
  Activation kind = Activation::gelu_tanh;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
};

struct ActivationBackwardArguments {
  ConstTensor input;
  ConstTensor out_gradient;
  Tensor input_gradient;  ///< shaped as input; may be `out_gradient` for gelu
  Tensor out;             ///< the forward result again, which the weight gradient needs
};

// --- embedding

struct EmbeddingShape {
  std::uint32_t batch = 0;
  std::uint32_t sequence = 0;
  std::uint64_t width = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t positions = 0;  ///< rows of the position table, 0: no table
  // The table given holds `rows` of the vocabulary from `first_row`, or all where `rows` is 0.
  // Tokens elsewhere are passed over: neither their rows of `out` nor any gradient of the table is
  // touched. The gradient of positions is that of all tokens.
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;
  /// The token for which the table gets no gradient.
  std::optional<std::uint32_t> padding{};
};

// --- cross-entropy of one chunk of tokens

struct CrossEntropyArguments {
  std::uint64_t rows = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t stride = 0;  ///< of rows of logits and of their gradient; 0: they lie side by side
  offload::DeviceSpan<const float> logits;  ///< [rows, vocabulary]
  Tokens targets;                           ///< [rows]; a negative one is ignored
  offload::DeviceSpan<double> loss_sum;     ///< [1], overwritten by the first chunk, else added to
  bool first = false;
  float gradient_scale = 0;
  Tensor logits_gradient;  ///< [rows, vocabulary] C; empty: none. May be `logits` where C is fp32
  Tensor workspace;        ///< reduction_workspace(rows, 2)

  [[nodiscard]] std::uint64_t row_stride() const { return stride > 0 ? stride : vocabulary; }
};

// --- cross-entropy over tiles of the vocabulary
// Every tile is scanned, in order; the sums then give the loss and, tile by tile once more, the
// gradient.

/// What is known of one token after the tiles scanned so far.
struct VocabularyScan {
  double largest = 0;  ///< logit
  double total = 0;    ///< sum of exp(logit - largest)
  double target = 0;   ///< logit of the target, once its tile was there
};

/// Merges a token's scans of two parts of the vocabulary that have no column in common: the sums of
/// exponentials are brought to the larger logit. A target that is in neither, or outside the
/// vocabulary (NaN), stays so.
[[nodiscard]] SPILLWAY_HOST_DEVICE inline VocabularyScan merged(const VocabularyScan& a,
                                                                const VocabularyScan& b) {
  const double target = a.target + b.target;  // one of them is 0
  if (b.largest > a.largest) {
    return {b.largest, a.total * std::exp(a.largest - b.largest) + b.total, target};
  }
  return {a.largest, a.total + b.total * std::exp(b.largest - a.largest), target};
}

/// Columns [first_column, first_column + columns) of the vocabulary.
struct VocabularyTile {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t first_column = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t stride = 0;  ///< of rows of logits and of their gradient; 0: they lie side by side
  offload::DeviceSpan<const float> logits;  ///< [rows, columns]
  Tokens targets;                           ///< [rows]; a negative one is ignored

  [[nodiscard]] std::uint64_t row_stride() const { return stride > 0 ? stride : columns; }
};

// --- row-wise operations as data: everything but gemms and attention

struct NormForwardOp {
  NormShape shape;
  NormForwardArguments arguments;
};
struct NormBackwardOp {
  NormShape shape;
  NormBackwardArguments arguments;
};
struct ActivationForwardOp {
  ActivationShape shape;
  ConstTensor input;
  Tensor out;
};
struct ActivationBackwardOp {
  ActivationShape shape;
  ActivationBackwardArguments arguments;
};
/// Writes out [batch * sequence, width] = table[token] (+ positions[t % sequence]).
struct EmbeddingForwardOp {
  EmbeddingShape shape;
  Tokens tokens;
  ConstTensor table, positions;
  Tensor out;
};
struct EmbeddingBackwardOp {
  EmbeddingShape shape;
  Tokens tokens;
  ConstTensor out_gradient;
  Gradient table, positions;
  Tensor workspace;  ///< embedding_workspace
};
/// Takes a tile into `scans` [rows]; the first tile that is taken overwrites them.
struct ScanVocabularyOp {
  VocabularyTile tile;
  offload::DeviceSpan<VocabularyScan> scans;
  bool first = false;
};
/// Makes one of the scans of several parts of the vocabulary: `parts` [parts, rows] go into `scans`
/// [rows], part after part.
struct MergeScansOp {
  offload::DeviceSpan<const VocabularyScan> parts;
  offload::DeviceSpan<VocabularyScan> scans;
};
/// Writes loss_sum [1], the sum over rows of -log softmax(target), 0 where the target is negative.
struct SumLossesOp {
  Tokens targets;
  offload::DeviceSpan<const VocabularyScan> scans;
  offload::DeviceSpan<double> loss_sum;
  Tensor workspace;  ///< reduction_workspace(rows, 2)
};
/// Writes logits_gradient [rows, columns] C = gradient_scale * (softmax - one-hot target), with the
/// scans of all tiles. It may be `logits` where C is fp32.
struct VocabularyGradientOp {
  VocabularyTile tile;
  offload::DeviceSpan<const VocabularyScan> scans;
  float gradient_scale = 0;
  Tensor logits_gradient;
};
/// Makes gradient[c] (+)= sum over rows of out_gradient[rows, columns], for all of its columns.
struct BiasGradientOp {
  std::uint64_t rows = 0;
  HeadRows<ConstTensor> out_gradient;  ///< as many columns as the gradient has elements
  Gradient gradient;
  Tensor workspace;  ///< reduction_workspace(rows, columns)
};
struct FillZeroOp {
  offload::DeviceSpan<float> values;
};
/// Rounds `sums` to C in `out`, which has as many elements.
struct RoundSumsOp {
  offload::DeviceSpan<const float> sums;
  Tensor out;
};

using RowOp = std::variant<NormForwardOp, NormBackwardOp, RopeArguments, ActivationForwardOp,
                           ActivationBackwardOp, EmbeddingForwardOp, EmbeddingBackwardOp,
                           CrossEntropyArguments, ScanVocabularyOp, MergeScansOp, SumLossesOp,
                           VocabularyGradientOp, BiasGradientOp, FillZeroOp, RoundSumsOp>;

}  // namespace spillway::model
